"""The features of several owners in one registry: a fault of one owner's feature does not affect the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from verl_npu.errors import DamagedError, DeclarationError
from verl_npu.maintain.locks import record_lock, write_lock
from verl_npu.registry import Bundle, Feature, Never, Registry, SourceTree, State, Upstream
from verl_npu.registry.judge.bundles import judge_bundles

NEVER = Never("a test")


@pytest.fixture
def math(plugin, package, why) -> Feature:
    """Return our feature, a wrapper of `double`."""
    package.write("up.ops", "def double(x): return 2 * x\ndef triple(x): return 3 * x\n")
    feature = plugin.feature("math")
    feature.wrap("up.ops:double", retired_by=NEVER, **why)(double)
    return feature


def double(original, x):
    return ("ours", original(x))


def triple(original, x):
    return ("theirs", original(x))


@pytest.fixture
def theirs(math, package, why, tmp_path: Path) -> Bundle:
    """Return somebody else's feature, a wrapper of `triple` with a lock of its own."""
    feature = Feature("algebra", "more numbers")
    feature.owner = "theirs"
    feature.wrap("up.ops:triple", retired_by=NEVER, **why)(triple)
    up = Upstream("up", ("up",))
    write_lock(record_lock(up, "v1", "v1", package.tree(), [*feature]), tmp_path / "theirs")
    return Bundle([feature], (up,), tmp_path / "theirs", "theirs")


def start(plugin, *others: Bundle, **policy: object) -> Registry:
    own = plugin.bundles()
    plugin.bundles = lambda: [*own, *others]
    return plugin.start(**policy)


def run(package) -> tuple[object, object]:
    package.load("up")
    ops = package.load("up.ops")
    return ops.double(1), ops.triple(1)


def test_each_owner_is_judged_by_its_own_locks(plugin, package, theirs: Bundle) -> None:
    registry = start(plugin, theirs, strict=True)
    assert run(package) == (("ours", 2), ("theirs", 3))
    features = registry.activity()["features"]
    assert {name: (each["owner"], each["state"]) for name, each in features.items()} == {
        "math": ("", "applied"),
        "algebra": ("theirs", "applied"),
    }


def test_what_is_read_for_one_owner_is_not_read_again_for_another(plugin, theirs: Bundle) -> None:
    first, second = judge_bundles([replace(theirs, owner=""), theirs], SourceTree({}))
    assert first.tree.memory is second.tree.memory


@pytest.mark.parametrize("damage", ["no lock", "no folder"])
def test_a_wrong_lock_costs_its_owner_alone(plugin, package, theirs: Bundle, damage: str) -> None:
    if damage == "no folder":
        theirs = replace(theirs, locks=theirs.locks / "elsewhere")
    else:
        (theirs.locks / "up" / "v1" / "lock.json").write_text("no lock")
    registry = start(plugin, theirs)
    assert run(package) == (("ours", 2), 3)
    assert registry.states() == {"math": State.APPLIED, "algebra": State.FAILED}
    (line,) = plugin.reported
    assert str(theirs.locks) in line
    assert registry.status()["algebra.triple"].reason == line


def test_a_wrong_lock_is_an_error_under_strict(plugin, package, theirs: Bundle) -> None:
    (theirs.locks / "up" / "v1" / "lock.json").write_text("no lock")
    start(plugin, theirs, strict=True)
    with pytest.raises(DeclarationError):
        package.load("up")


def test_a_patch_that_is_missing_is_missed_in_its_owners_features_only(plugin, package, theirs: Bundle) -> None:
    empty = Feature("algebra", "more numbers")
    registry = start(plugin, replace(theirs, features=[empty]))
    assert run(package) == (("ours", 2), 3)
    (line,) = plugin.reported
    assert line.startswith(
        "theirs: some files of the package are probably missing or truncated, because these patches are in the locks"
    )
    assert "but not in the code: algebra.triple; " in line
    assert registry.states()["math"] is State.APPLIED


def test_a_patch_of_theirs_in_our_lock_is_damage_that_says_where_it_belongs(plugin, package, theirs: Bundle) -> None:
    write_lock(record_lock(theirs.upstreams[0], "v2", "v2", package.tree(), [*theirs.features[0]]), plugin.locks)
    start(plugin, theirs)
    with pytest.raises(DamagedError, match=r"not in the code: algebra\.triple; .* into your own distribution"):
        package.load("up")


def test_whatever_else_judging_raises_costs_its_owner_alone(theirs: Bundle, package) -> None:
    # A target in a package that is no upstream.
    bundle = replace(theirs, upstreams=(Upstream("down", ("down",)),))
    (found,) = judge_bundles([bundle], package.tree())
    assert isinstance(found.error, DeclarationError)
    assert "the features of theirs" in str(found.error)


def test_what_an_owner_patches_further_is_looked_up_where_we_run(plugin, package, why, theirs: Bundle) -> None:
    (package.root / "down.py").write_text("")
    (package.root / "side").mkdir()
    (package.root / "side" / "__init__.py").write_text("def double(x): return 2 * x\n")
    side = Upstream("side", ("side",))
    feature = Feature("sideways", "another package")
    feature.wrap("side:double", retired_by=NEVER, **why)(triple)
    locked = record_lock(side, "v1", "v1", SourceTree.at(package.root, ("side",)), [*feature])
    write_lock(locked, theirs.locks)
    start(plugin, replace(theirs, features=[*theirs.features, feature], upstreams=(*theirs.upstreams, side)))
    assert run(package) == (("ours", 2), ("theirs", 3))
    assert package.load("side").double(2) == ("theirs", 4)


# Features that come late.


@pytest.mark.parametrize("copied", [False, True], ids=["the feature", "what it was made of"])
def test_a_patch_that_comes_late_is_one_sentence(plugin, package, why, math: Feature, copied: bool) -> None:
    plugin.features = [math.with_parts()] if copied else [math]
    registry = plugin.start()
    package.load("up")
    math.wrap("up.ops:triple", retired_by=NEVER, **why)(triple)
    ops = package.load("up.ops")
    assert (ops.double(1), ops.triple(1)) == (("ours", 2), 3)
    assert registry.states() == {"math": State.APPLIED}
    (line,) = plugin.reported
    assert line.startswith(
        f"patch math.triple, declared in {__name__}: this patch is ignored, because it was declared after"
    )


def test_a_patch_that_comes_late_is_an_error_under_strict(plugin, package, why, math: Feature) -> None:
    plugin.start(strict=True)
    package.load("up")
    with pytest.raises(DeclarationError, match="declared after verl-npu had decided which patches to apply"):
        math.wrap("up.ops:triple", retired_by=NEVER, **why)(triple)


def test_a_patch_that_is_declared_again_is_not_late(plugin, package, why, math: Feature) -> None:
    plugin.start(strict=True)
    package.load("up")
    math.wrap("up.ops:double", retired_by=NEVER, **why)(double)
    assert len(math) == 1
