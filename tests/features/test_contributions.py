"""Features from other distributions' entry points are accepted, or left out with a sentence that names the owner."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from testing.interpreter import python

from verl_npu import features
from verl_npu.features import Contribution, contributions
from verl_npu.registry import Bundle, Feature, Never, Upstream

NEVER = Never("a test")
TEXTS = {"why": "a reason", "how": "a way", "link": "none: a test", "retired_by": NEVER}
# Two targets of verl, of which verl-npu patches the second.
FREE, TAKEN = "verl.utils.memory_utils:aggressive_empty_cache", "verl.utils.device:is_npu_available"


def patch(original):
    return original()


def feature(name: str = "theirs", target: str = FREE) -> Feature:
    made = Feature(name, "a feature of somebody else")
    made.wrap(target, **TEXTS)(patch)
    return made


def contribution(*made: object, **more: object) -> Contribution:
    return Contribution(features=made, locks=Path("locks"), **more)  # type: ignore[arg-type]


class Point:
    """An entry point that exists only in memory."""

    def __init__(self, owner: str, found: object) -> None:
        self.name, self.value, self.dist, self.found = "x", f"{owner}:x", type("Owner", (), {"name": owner}), found

    def load(self) -> object:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Bundle]]:
    """Return a function that makes bundles of objects, as if owners' entry points named them."""

    def call(**found: object) -> list[Bundle]:
        points = [Point(owner, one) for owner, one in found.items()]
        monkeypatch.setattr(metadata, "entry_points", lambda group: points if group == "verl_npu.features" else [])
        return list(features.bundles())[1:]

    return call


def test_a_feature_has_its_owner_and_our_upstreams(brought) -> None:
    (bundle,) = brought(them=contribution(feature()))
    assert [(each.name, each.owner, len(each)) for each in bundle.features] == [("theirs", "them", 1)]
    assert bundle.errors == []
    assert [upstream.name for upstream in bundle.upstreams] == [upstream.name for upstream in features.UPSTREAMS]


def test_nothing_is_wrong_with_our_own() -> None:
    assert list(features.bundles()[0].errors) == []


@pytest.mark.parametrize(
    ("found", "said"),
    {
        "an import error": (
            ImportError("no torch_of_theirs"),
            "because it cannot be loaded: ImportError: no torch_of_theirs",
        ),
        "any error": (ZeroDivisionError("1/0"), "because it cannot be loaded: ZeroDivisionError: 1/0"),
        "no contribution": (feature(), "x of them: expected a Contribution"),
        "no feature": (contribution("theirs"), "x of them: expected a Contribution"),
        "no path": (Contribution((feature(),), "locks"), "x of them: expected a Contribution"),  # type: ignore[arg-type]
        "an upstream of ours": (
            contribution(feature(), upstreams=(Upstream("mine", ("verl",)),)),
            "upstream verl of them: verl-npu already lists this upstream (verl)",
        ),
        "a package that is no upstream": (
            contribution(feature(target="vllm.utils:get_ip")),
            "patch theirs.patch of them: expected a patch whose target and probes concern only verl, recipe",
        ),
        "a target of ours": (
            contribution(feature(target=TAKEN)),
            "patch theirs.patch of them: "
            f"device.detect_npu_by_installed_software of verl-npu already patches {TAKEN}, so verl-npu ignores "
            "the feature theirs of them",
        ),
        "a name of ours": (
            contribution(feature("device")),
            "feature device of them: verl-npu already has a feature with this name, so verl-npu ignores the "
            "feature of them",
        ),
    }.values(),
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_what_is_wrong_is_one_sentence_and_costs_its_owner_alone(brought, found: object, said: str) -> None:
    first, second = brought(them=found, us=contribution(feature("fine")))
    assert (list(first.features), [each.name for each in second.features]) == ([], ["fine"])
    (error,) = first.errors
    assert said in str(error)
    assert len(str(error).splitlines()) == 1
    assert list(second.errors) == []


def test_a_feature_that_is_wrong_costs_no_other_of_its_owner(brought) -> None:
    (bundle,) = brought(them=contribution(feature("device"), feature("fine")))
    assert [each.name for each in bundle.features] == ["fine"]
    assert len(bundle.errors) == 1


def test_of_two_owners_the_later_yields_and_both_are_named(brought) -> None:
    b, a = contribution(feature("late")), contribution(feature("early"))
    first, second = brought(b=b, a=a)
    assert [each.name for each in first.features] == ["early"]
    assert list(second.features) == []
    assert "patch late.patch of b" in str(second.errors[0])
    assert "early.patch of a" in str(second.errors[0])


def test_a_contribution_that_comes_late_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contributions, "_ended", True)
    contribution(feature())
    assert capsys.readouterr().err.startswith(
        "verl-npu: the contributed features theirs: verl-npu ignores these features"
    )
    monkeypatch.setenv("VERL_NPU_STRICT", "1")
    with pytest.raises(features.contributions.DeclarationError, match="contributed after verl was imported"):
        contribution(feature())


# In a job, with the installed verl.

STRANGER = f"""
from verl_npu.features.device import device
from verl_npu.registry import Never
@device.wrap({FREE!r}, why="w", how="h", link="none", retired_by=Never("a test"))
def one_attempt(original, force_sync=True, max_retries=1): ...
"""
SHOW = "import verl, verl_npu; print(verl_npu.status()['features']['device']['state'])"


@pytest.mark.upstream
@pytest.mark.parametrize(
    ("program", "variables", "said"),
    [
        pytest.param(
            f"import stranger; {SHOW}",
            {},
            "declare the patch in a feature of your own, and contribute this feature through an entry point in the",
            marks=pytest.mark.nightly("verl_npu/features/contributions.py"),
        ),
        (
            SHOW,
            {"VERL_USE_EXTERNAL_MODULES": "stranger"},
            "declared after verl-npu had decided which patches to apply",
        ),
    ],
    ids=["before verl", "by verl itself"],
)
def test_a_patch_that_a_stranger_puts_into_our_feature_is_one_sentence(
    tmp_path: Path, program: str, variables: dict[str, str], said: str
) -> None:
    pytest.importorskip("verl")
    (tmp_path / "stranger.py").write_text(STRANGER)
    done = python("-c", program, paths=[tmp_path], clean="VERL_", VERL_NPU="on", **variables)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "applied"), done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "one_attempt" in line]
    assert line.startswith("verl-npu: patch device.one_attempt, declared in stranger: ")
    assert said in line


@pytest.mark.upstream
@pytest.mark.parametrize("late", [True, False])
def test_under_strict_it_is_an_error(tmp_path: Path, late: bool) -> None:
    pytest.importorskip("verl")
    (tmp_path / "stranger.py").write_text(STRANGER)
    program, variables = (
        ("import verl", {"VERL_USE_EXTERNAL_MODULES": "stranger"}) if late else ("import stranger, verl", {})
    )
    done = python("-c", program, paths=[tmp_path], clean="VERL_", VERL_NPU="on", VERL_NPU_STRICT="1", **variables)
    assert done.returncode == 1
    assert "DeclarationError: patch device.one_attempt, declared in stranger" in done.stderr.splitlines()[-1]
