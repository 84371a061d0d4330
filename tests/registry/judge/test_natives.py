"""The targets that upstream means to patch by itself are looked up: each exists, or upstream uses a stale name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from verl_npu.registry.judge.natives import Native, judge_natives
from verl_npu.registry.source.named import PatchModule
from verl_npu.registry.source.tree import SourceTree
from verl_npu.registry.state import State

from ..conftest import Package

MODULE = PatchModule("up.patches", ("apply",), ("is_npu_available",))
ALPHA = "class Norm:\n    def forward(self): ...\n\nclass MLP:\n    def forward(self): ...\n\ndef rotary(): ...\n"

TABLE = """
    def _alpha():
        from lib.models import alpha
        alpha.Norm.forward = norm
        alpha.MLP.forward = mlp
        alpha.rotary = rotary

    def _beta():
        from lib.models.beta import modeling_beta
        modeling_beta.Norm.forward = norm

    ALL = {"alpha": _alpha, "beta": _beta}

    def apply():
        for name, patch in ALL.items():
            try:
                patch()
            except ImportError:
                pass
            except Exception as error:
                log(error)
"""
AT_IMPORT = """
    from lib.models import alpha
    from lib.models.beta import modeling_beta
    alpha.Norm.forward = norm
    alpha.MLP.forward = mlp
    alpha.rotary = rotary
    modeling_beta.Norm.forward = norm
"""


@pytest.fixture
def lib(tmp_path: Path) -> Path:
    root = tmp_path / "lib-source"
    for path, text in {
        "lib/__init__.py": "",
        "lib/models/__init__.py": "",
        "lib/models/alpha.py": ALPHA,
        "lib/models/beta/__init__.py": "",
        "lib/models/beta/modeling_beta.py": ALPHA,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture
def judged(package: Package, lib: Path):
    """Return a function that judges the targets of a patch module, except those under our own patches."""

    def judged(source: str, *ours: str) -> dict[str, Native]:
        package.write("up.patches", source)
        tree = package.tree().with_packages(SourceTree.at(lib, ("lib",)))
        return {native.target: native for native in judge_natives([MODULE], tree, ours)}

    return judged


def states(found: dict[str, Native]) -> dict[str, State]:
    return {target.removeprefix("lib.models."): native.state for target, native in found.items()}


@pytest.mark.parametrize("source", [TABLE, AT_IMPORT])
def test_targets_that_are_there_are_claimed(judged, source: str) -> None:
    assert states(judged(source)) == {
        "alpha:Norm.forward": State.NATIVE,
        "alpha:MLP.forward": State.NATIVE,
        "alpha:rotary": State.NATIVE,
        "beta.modeling_beta:Norm.forward": State.NATIVE,
    }


def test_a_renamed_class_ends_its_model_and_no_other(judged, lib: Path) -> None:
    (lib / "lib/models/alpha.py").write_text(ALPHA.replace("Norm", "RMSNorm"))
    found = judged(TABLE)
    assert states(found) == {
        "alpha:Norm.forward": State.FAILED,
        "alpha:MLP.forward": State.FAILED,
        "alpha:rotary": State.FAILED,
        "beta.modeling_beta:Norm.forward": State.NATIVE,
    }
    assert {native.reason for native in found.values() if native.state is State.FAILED} == {
        "no lib.models.alpha:Norm, which up.patches assigns in line 4"
    }


def test_at_import_it_ends_all_that_comes_after_it(judged, lib: Path) -> None:
    (lib / "lib/models/alpha.py").write_text(ALPHA.replace("MLP", "FeedForward"))
    assert states(judged(AT_IMPORT)) == {
        "alpha:Norm.forward": State.NATIVE,
        "alpha:MLP.forward": State.FAILED,
        "alpha:rotary": State.FAILED,
        "beta.modeling_beta:Norm.forward": State.FAILED,
    }


def test_a_renamed_function_is_assigned_and_used_by_nobody(judged, lib: Path) -> None:
    (lib / "lib/models/alpha.py").write_text(ALPHA.replace("rotary", "rotate"))
    found = judged(AT_IMPORT)
    assert states(found)["alpha:rotary"] is State.FAILED
    assert states(found)["beta.modeling_beta:Norm.forward"] is State.NATIVE


def test_a_model_that_is_not_there_is_no_loss_if_upstream_expects_that(judged, lib: Path) -> None:
    shutil.rmtree(lib / "lib/models/beta")
    assert states(judged(TABLE))["beta.modeling_beta.Norm.forward"] is State.ABSENT
    # Without a handler nothing at all is patched.
    assert set(states(judged(AT_IMPORT)).values()) == {State.FAILED}


def test_a_module_that_was_renamed_in_a_model_that_is_there_is_a_loss(judged, lib: Path) -> None:
    (lib / "lib/models/beta/modeling_beta.py").rename(lib / "lib/models/beta/modelling_beta.py")
    native = judged(TABLE)["lib.models.beta.modeling_beta.Norm.forward"]
    assert native.state is State.FAILED
    assert "no lib.models.beta.modeling_beta" in native.reason


def test_a_package_that_is_not_installed_is_no_loss(package: Package) -> None:
    package.write("up.patches", AT_IMPORT)
    tree = package.tree().with_packages(SourceTree({"lib": None}))
    found = judge_natives([MODULE], tree)
    assert {native.state for native in found} == {State.ABSENT}
    assert {native.reason for native in found} == {"lib is not installed here"}


def test_the_branch_that_is_not_taken_is_left_out(judged) -> None:
    source = (
        "from lib.models import alpha\n"
        "if hasattr(alpha, 'Old'):\n    alpha.Old.forward = f\nelse:\n    alpha.Norm.forward = f\n"
    )
    assert states(judged(source)) == {"alpha:Norm.forward": State.NATIVE}


def test_what_depends_on_something_else_is_said(judged) -> None:
    source = (
        "from lib.models import alpha\nif version() == 1:\n    alpha.Norm.forward = f\n    alpha.Gone.forward = f\n"
    )
    found = judged(source)
    assert states(found) == {"alpha:Norm.forward": State.NATIVE}
    assert all("only if version() == 1" in native.reason for native in found.values())


def test_what_a_patch_of_ours_lies_over_is_left_out(judged, lib: Path) -> None:
    (lib / "lib/models/alpha.py").write_text(ALPHA.replace("MLP", "FeedForward"))
    assert "lib.models.alpha:MLP.forward" not in judged(AT_IMPORT, "lib.models.alpha:MLP.forward")
