"""Patches that are left to upstream are read back after upstream's ran: seen, not reached yet, or lost."""

from __future__ import annotations

import sys
import textwrap
from types import ModuleType

import pytest

from verl_npu.errors import DriftError
from verl_npu.registry.apply.engine import Registry
from verl_npu.registry.source.named import PatchModule
from verl_npu.registry.source.probe import Assigns, Never
from verl_npu.registry.state import State

from ..conftest import Package, Plugin

NORM = "up.models.alpha:Norm.forward"
MLP = "up.models.alpha:MLP.forward"
ALPHA = """
    class Norm:
        def forward(self):
            return "theirs"

    class MLP:
        def forward(self):
            return "theirs"

    def rotary():
        return "theirs"
"""
PATCHES = """
    import functools

    def norm(self):
        return "upstream's"

    def mlp(original):
        @functools.wraps(original)
        def wrapped(self):
            return "upstream's"
        return wrapped

    def apply():
        try:
            from up.models import alpha
            alpha.Norm.forward = norm
            alpha.MLP.forward = mlp(alpha.MLP.forward)
            alpha.rotary = norm
        except Exception:
            pass
        return 7
"""
MODULE = PatchModule("up.patches", ("apply",))


@pytest.fixture
def upstream(package: Package, plugin: Plugin) -> Package:
    package.write("up.models.__init__", "")
    package.write("up.models.alpha", ALPHA)
    package.write("up.patches", PATCHES)
    plugin.patch_modules.append(MODULE)
    return package


@pytest.fixture
def left(plugin: Plugin, upstream: Package, why: dict[str, str]) -> Plugin:
    """Add a feature with two patches that are left to upstream; the pin is locked as it is."""
    feature = plugin.feature("fused")
    for target, name in ((NORM, "norm"), (MLP, "mlp")):

        def ours(original, self):
            return "ours"

        ours.__name__ = name
        feature.wrap(target, retired_by=Assigns(MODULE, target), **why)(ours)
    plugin.lock()
    return plugin


def start(plugin: Plugin, **policy: object) -> Registry:
    registry = plugin.start(lock=False, **policy)
    plugin.package.load("up")
    return registry


CLAIMED, SEEN = "claimed", "seen"


def states(registry: Registry) -> dict[str, str]:
    """Return the state of each patch; a native one is claimed until it is seen."""
    native = {id: SEEN if verdict.seen else CLAIMED for id, verdict in registry.status().items() if verdict.claims}
    found = {patch_id: verdict.state for patch_id, verdict in registry.status().items()}
    return {id: native.get(id, state) if state is State.NATIVE else state for id, state in found.items()}


def apply(plugin: Plugin) -> ModuleType:
    patches = plugin.package.load("up.patches")
    assert patches.apply() == 7
    return patches


def test_before_upstreams_patch_ran_it_is_claimed(left: Plugin) -> None:
    registry = start(left)
    left.package.load("up.patches")
    assert states(registry) == {"fused.norm": CLAIMED, "fused.mlp": CLAIMED}
    assert registry.states() == {"fused": State.NATIVE}
    assert registry.activity()["natives"] == {}


def test_afterwards_it_is_seen(left: Plugin) -> None:
    registry = start(left)
    apply(left)
    assert states(registry) == {"fused.norm": SEEN, "fused.mlp": SEEN}
    assert registry.states() == {"fused": State.NATIVE}
    natives = registry.activity()["natives"]
    assert {target: entry["state"] for target, entry in natives.items()} == {
        NORM: "native",
        MLP: "native",
        "up.models.alpha:rotary": "native",
    }
    assert left.reported == []


def test_a_module_that_patches_when_it_is_imported_is_read_back_then(left: Plugin, upstream: Package) -> None:
    upstream.write("up.patches", textwrap.dedent(PATCHES) + "apply()\n")
    left.lock()
    registry = start(left)
    upstream.load("up.patches")
    assert set(states(registry).values()) == {SEEN}


def test_patches_of_before_we_came_are_seen(left: Plugin) -> None:
    apply(left)
    registry = start(left)
    assert set(states(registry).values()) == {SEEN}


def test_a_name_that_went_stale_is_ineffective_and_named(left: Plugin, upstream: Package) -> None:
    upstream.write("up.models.alpha", ALPHA.replace("MLP", "FeedForward"))
    registry = start(left)
    # Its own target is gone, which the source says before anything runs.
    assert states(registry) == {"fused.norm": CLAIMED, "fused.mlp": State.FAILED}
    assert registry.states() == {"fused": State.FAILED}
    (line,) = left.reported
    assert MLP in line
    apply(left)
    assert states(registry) == {"fused.norm": SEEN, "fused.mlp": State.FAILED}
    assert registry.activity()["natives"][MLP] == {
        "by": "up.patches",
        "state": "failed",
        "reason": "no up.models.alpha:MLP, which up.patches assigns in line 17",
    }


def test_what_comes_after_a_stale_name_is_lost_too(left: Plugin, upstream: Package) -> None:
    # Every target that is left to upstream exists, and upstream stops before it gets there.
    upstream.write(
        "up.patches", PATCHES.replace("            alpha.Norm", "            alpha.Gone.x = 1\n            alpha.Norm")
    )
    left.lock()
    registry = start(left)
    assert set(states(registry).values()) == {CLAIMED}
    apply(left)
    assert states(registry) == {"fused.norm": State.FAILED, "fused.mlp": State.FAILED}
    (line,) = left.reported
    assert "no up.models.alpha:Gone" in line
    assert "and 1 more" in line


def test_under_strict_a_gone_target_is_an_error_of_the_import(left: Plugin, upstream: Package) -> None:
    upstream.write("up.models.alpha", ALPHA.replace("MLP", "FeedForward"))
    with pytest.raises(DriftError, match=r"MLP\.forward"):
        start(left, strict=True)


def test_under_strict_what_did_not_arrive_is_an_error_of_the_call(left: Plugin, upstream: Package) -> None:
    upstream.write(
        "up.patches", PATCHES.replace("            alpha.Norm", "            alpha.Gone.x = 1\n            alpha.Norm")
    )
    left.lock()
    start(left, strict=True)
    patches = upstream.load("up.patches")
    with pytest.raises(DriftError, match=r"no up\.models\.alpha:Gone") as raised:
        patches.apply()
    assert raised.value.override == "PLUGIN_STRICT=0"


def test_an_attribute_that_nobody_looks_at_is_not_in_force(plugin: Plugin, upstream: Package) -> None:
    # It can be assigned, and read back it is upstream's.
    upstream.write("up.models.alpha", ALPHA.replace("def rotary", "def rotate"))
    plugin.lock()
    registry = start(plugin)
    apply(plugin)
    entry = registry.activity()["natives"]["up.models.alpha:rotary"]
    assert entry["state"] == "failed"
    assert "no up.models.alpha:rotary" in entry["reason"]
    # No patch of ours is left to it, so that is no error and prints no line.
    assert plugin.reported == []


def test_a_target_that_somebody_overwrites_later_is_shadowed(left: Plugin) -> None:
    registry = start(left)
    apply(left)
    sys.modules["up.models.alpha"].Norm.forward = lambda self: "somebody's"
    assert states(registry) == {"fused.norm": State.OVERWRITTEN, "fused.mlp": SEEN}


def test_what_ran_and_did_not_assign_is_ineffective(left: Plugin, upstream: Package) -> None:
    # The source says that it assigns; it does not get there, for a reason that no source shows.
    upstream.write(
        "up.patches",
        PATCHES.replace("from up.models import alpha", "from up.models import alpha\n            print(1 / 0)"),
    )
    left.lock()
    registry = start(left)
    apply(left)
    assert set(states(registry).values()) == {State.FAILED}
    assert "up.patches ran, and up.models.alpha:Norm.forward is" in registry.status()["fused.norm"].reason


def test_a_condition_that_does_not_hold_is_no_loss(plugin: Plugin, upstream: Package) -> None:
    upstream.write(
        "up.patches", "import sys\nfrom up.models import alpha\nif sys.maxsize == 1:\n    alpha.Norm.forward = 1\n"
    )
    registry = start(plugin)
    upstream.load("up.patches")
    assert registry.activity()["natives"] == {}


def test_a_module_whose_import_fails_is_ineffective_though_upstream_swallows_it(
    plugin: Plugin, upstream: Package
) -> None:
    upstream.write("up.patches", "from up.models import alpha\nimport up.gone\nalpha.Norm.forward = print\n")
    registry = start(plugin)
    with pytest.raises(ImportError):
        upstream.load("up.patches")
    assert registry.activity()["natives"][NORM] == {
        "by": "up.patches",
        "state": "failed",
        "reason": "no up.gone, which up.patches imports in line 2",
    }


def test_what_a_patch_of_ours_lies_over_does_not_matter(
    plugin: Plugin, upstream: Package, why: dict[str, str]
) -> None:
    @plugin.feature("fused", after="up.patches").wrap(NORM, retired_by=Never("a test"), **why)
    def norm(original, self):
        return "ours"

    upstream.write(
        "up.patches",
        "from up.models import alpha\ndef norm(self):\n    return 'upstream'\nalpha.Norm.forward = norm\n",
    )
    plugin.lock()
    registry = start(plugin)
    upstream.load("up.patches")
    assert sys.modules["up.models.alpha"].Norm().forward() == "ours"
    assert states(registry) == {"fused.norm": State.APPLIED}
    assert registry.activity()["natives"] == {}


def test_what_a_patch_of_ours_puts_back_is_said(left: Plugin, upstream: Package, why: dict[str, str]) -> None:
    @left.features[0].wrap("up.patches:apply", retired_by=Never("a test"), undoes=["up.models.alpha:rotary"], **why)
    def keep_theirs(original):
        alpha = sys.modules["up.models.alpha"]
        own = alpha.rotary
        result = original()
        alpha.rotary = own
        return result

    left.lock()
    registry = start(left)
    upstream.load("up.models.alpha")
    apply(left)
    assert states(registry) == {
        "fused.norm": SEEN,
        "fused.mlp": SEEN,
        "fused.keep_theirs": State.APPLIED,
    }
    assert registry.activity()["natives"]["up.models.alpha:rotary"]["state"] == "off"
    assert "fused.keep_theirs" in registry.activity()["natives"]["up.models.alpha:rotary"]["reason"]


def test_deactivated_upstreams_functions_are_its_own_again(left: Plugin, upstream: Package) -> None:
    registry = start(left)
    patches = upstream.load("up.patches")
    watched = patches.apply
    assert watched.__wrapped__.__module__ == "up.patches"
    registry.deactivate()
    assert patches.apply is watched.__wrapped__
    registry.activate()
    assert patches.apply is not watched.__wrapped__


def test_what_upstreams_function_raises_is_raised(left: Plugin, upstream: Package) -> None:
    upstream.write("up.patches", PATCHES.replace("    def apply():\n", "    def apply():\n        print(1 / 0)\n"))
    left.lock()
    registry = start(left)
    with pytest.raises(ZeroDivisionError):
        upstream.load("up.patches").apply()
    assert registry.status()["fused.norm"].state is State.FAILED
    assert "ZeroDivisionError" in registry.status()["fused.norm"].reason
