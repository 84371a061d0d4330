"""A guard runs before its module is executed, every time, and can stop it; then nothing of the module has happened."""

from __future__ import annotations

import sys

import pytest

from verl_npu.registry.source.probe import Defines, Never
from verl_npu.registry.state import State

NEVER = Never("a test")
SIDE_EFFECT = """
    import up.world
    up.world.touched.append("executed")

    def work():
        return 1

    def play():
        return 2
"""


@pytest.fixture
def world(package):
    package.write("up.world", "touched = []\n")
    package.write("up.side", SIDE_EFFECT)
    return package


@pytest.fixture
def guarded(plugin, world, why):
    """A feature that guards `up.side` and wraps `work`; the guard does what `guarded.does` says."""
    feature = plugin.feature("guarded")
    plugin.does = lambda: None

    @feature.guard("up.side:work", retired_by=NEVER, **why)
    def stop():
        import up.world

        up.world.touched.append("guard")
        plugin.does()

    return plugin


def test_a_guard_runs_before_its_module(guarded, world) -> None:
    registry = guarded.start()
    world.load("up")
    assert registry.status()["guarded.stop"].state is State.PENDING
    world.load("up.side")
    assert sys.modules["up.world"].touched == ["guard", "executed"]
    assert registry.status()["guarded.stop"].state is State.APPLIED


def test_what_a_guard_raises_stops_the_import_every_time(guarded, world) -> None:
    def refuse():
        raise ImportError("not here")

    guarded.start()
    guarded.does = refuse
    world.load("up")
    for _ in range(2):
        with pytest.raises(ImportError, match="not here"):
            world.load("up.side")
    assert sys.modules["up.world"].touched == ["guard", "guard"]
    assert "up.side" not in sys.modules


def test_a_guard_goes_with_its_registry(guarded, world) -> None:
    registry = guarded.start()
    world.load("up")
    registry.deactivate()
    world.load("up.side")
    assert sys.modules["up.world"].touched == ["executed"]
    assert registry.status()["guarded.stop"].state is State.REGISTERED


def test_a_guard_of_a_drifted_target_is_not_run(guarded, world) -> None:
    guarded.lock()
    world.write("up.side", SIDE_EFFECT.replace("def work():", "def work(more):"))
    registry = guarded.start(lock=False)
    world.load("up")
    world.load("up.side")
    assert sys.modules["up.world"].touched == ["executed"]
    assert registry.status()["guarded.stop"].state is State.DRIFTED


def test_a_guard_that_its_probe_retires_is_not_run(plugin, world, why) -> None:
    feature = plugin.feature("guarded")

    @feature.guard("up.side:work", retired_by=Defines("up.side:work"), **why)
    def stop():
        raise ImportError("not here")

    registry = plugin.start()
    world.load("up")
    world.load("up.side")
    assert registry.status()["guarded.stop"].state is State.NATIVE


def test_a_guard_goes_where_its_feature_fails(guarded, world, why) -> None:
    @guarded.features[0].wrap("up.side:play", retired_by=NEVER, **why)
    def broken(original):
        return name_that_does_not_resolve  # noqa: F821

    registry = guarded.start()
    world.load("up")
    world.load("up.side")
    assert registry.status()["guarded.broken"].state is State.FAILED
    del sys.modules["up.side"]
    world.load("up.side")
    assert sys.modules["up.world"].touched == ["guard", "executed", "executed"]
