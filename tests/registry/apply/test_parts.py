"""A feature's patches of packages that are not installed stay unloaded, and the rest of the feature is complete."""

from __future__ import annotations

import pytest

from verl_npu.errors import DamagedError
from verl_npu.registry.patch import Feature
from verl_npu.registry.source.probe import Never
from verl_npu.registry.state import State

NEVER = Never("a test")


@pytest.fixture
def loaded() -> list[str]:
    """Return a list that grows by one entry each time that the part is loaded."""
    return []


@pytest.fixture
def math(plugin, package, why, loaded) -> Feature:
    """Return a feature with a patch of `double`, and a part with a patch of `triple` that needs `calculus`."""
    package.write("up.ops", "def double(x): return 2 * x\ndef triple(x): return 3 * x\n")
    feature = Feature("math", "numbers")
    part = feature.more()

    @feature.wrap("up.ops:double", retired_by=NEVER, **why)
    def double(original, x):
        return ("ours", original(x))

    @feature.part("algebra", "calculus", patches="triple")
    def load() -> Feature:
        loaded.append("calculus")

        @part.wrap("up.ops:triple", retired_by=NEVER, **why)
        def triple(original, x):
            return ("ours", original(x))

        return part

    plugin.features = [feature.with_parts()]
    plugin.lock()
    loaded.clear()
    return feature


def without(package: str) -> bool:
    return False


def test_a_part_is_applied_where_one_of_its_packages_is(plugin, package, math) -> None:
    plugin.features = [math.with_parts(lambda package: package == "calculus")]
    registry = plugin.start(lock=False)
    package.load("up")
    ops = package.load("up.ops")
    assert (ops.double(1), ops.triple(1)) == (("ours", 2), ("ours", 3))
    assert registry.states() == {"math": State.APPLIED}


def test_a_part_without_any_of_its_packages_is_not_loaded_and_the_others_are_applied(
    plugin, package, math, loaded
) -> None:
    plugin.features = [math.with_parts(without)]
    registry = plugin.start(lock=False, strict=True)
    package.load("up")
    ops = package.load("up.ops")
    assert (ops.double(1), ops.triple(1)) == (("ours", 2), 3)
    assert registry.states() == {"math": State.APPLIED}
    assert loaded == []


def test_a_feature_that_is_left_out_whole_is_absent(plugin, package, math) -> None:
    whole = Feature("math", "numbers")
    whole.part("calculus", patches="double triple")(lambda: math)
    plugin.features = [whole.with_parts(without)]
    registry = plugin.start(lock=False, strict=True)
    package.load("up")
    assert registry.states() == {"math": State.ABSENT}


def test_a_patch_that_is_missing_beside_a_part_that_is_left_out_is_damage(plugin, package, math) -> None:
    shorter = Feature("math", "numbers")
    shorter.part("calculus", patches="triple")(lambda: math)
    plugin.features = [shorter.with_parts(without)]
    plugin.start(lock=False)
    with pytest.raises(DamagedError, match=r"not in the code: math\.double;"):
        package.load("up")


def test_what_is_loaded_later_is_none_of_the_registrys(plugin, package, math) -> None:
    plugin.features = [math.with_parts(without)]
    registry = plugin.start(lock=False)
    package.load("up")
    math.with_parts()
    assert registry.status().keys() == {"math.double"}
