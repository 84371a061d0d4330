"""An interruption while patches are applied or reverted leaves all or none, and what could not be done is named."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from verl_npu.registry.apply import slots
from verl_npu.registry.apply.slots import Binding
from verl_npu.registry.source.probe import Never
from verl_npu.registry.state import State

TARGETS = ("up.ops:one", "up.ops:two", "up.ops:K.method", "up.more:three")
KINDS = (RuntimeError, KeyboardInterrupt)
STEPS = 24


@pytest.fixture
def feature(package, plugin, why):
    package.write("up.ops", "def one(): ...\ndef two(): ...\nclass K:\n    def method(self): ...\n")
    package.write("up.more", "from up.ops import one, two as second\ndef three(): ...\n")
    made = plugin.feature("f")
    for number, target in enumerate(TARGETS):

        def ours(*args: object) -> str:
            return "ours"

        ours.__name__ = f"patch_{number}"
        made.replace(target, retired_by=Never("a test"), **why)(ours)
    return made


def snapshot() -> dict[str, dict[str, object]]:
    modules = {name: module for name, module in sys.modules.items() if name.startswith("up")}
    spaces = {name: dict(vars(module)) for name, module in modules.items()}
    if "up.ops" in modules:
        spaces["K"] = {k: v for k, v in vars(modules["up.ops"].K).items() if not k.startswith("__")}
    return spaces


class Failing:
    """Raises at the n-th write of a slot, before or after the write, and at the following ones, `times` in all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int, kind: type[BaseException], times: int = 1) -> None:
        self.count = 0
        self.raised = 0
        real = slots.Slot.write

        def write(slot: slots.Slot, value: object) -> None:
            self.count += 1
            late = step % 2
            if late:
                real(slot, value)
            if step // 2 < self.count <= step // 2 + times:
                self.raised += 1
                raise kind("injected")
            if not late:
                real(slot, value)

        monkeypatch.setattr(slots.Slot, "write", write)


@pytest.fixture
def clean() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", range(STEPS))
def test_a_failure_while_applying_leaves_every_object_as_it_was(package, plugin, feature, clean, step, kind) -> None:
    package.load("up.more")
    before = snapshot()
    failing = Failing(clean, step, kind)
    try:
        plugin.start()
    except kind:
        assert kind is KeyboardInterrupt
    clean.undo()
    registry = plugin.registries[0]
    if failing.raised:
        assert snapshot() == before
        assert State.APPLIED not in {verdict.state for verdict in registry.status().values()}
    else:
        assert {verdict.state for verdict in registry.status().values()} == {State.APPLIED}
    registry.deactivate()
    assert snapshot() == before


def test_the_steps_reach_past_the_last_write(package, plugin, feature, clean) -> None:
    package.load("up.more")
    failing = Failing(clean, 10**6, RuntimeError)
    plugin.start()
    assert 4 < failing.count < STEPS // 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", range(STEPS))
def test_a_failure_while_taking_back_is_tried_again_at_once(package, plugin, feature, clean, step, kind) -> None:
    package.load("up.more")
    before = snapshot()
    registry = plugin.start()
    failing = Failing(clean, step, kind)
    registry.deactivate()
    clean.undo()
    assert failing.count > 4
    assert snapshot() == before
    assert not registry.active


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", range(0, 12, 2))
def test_what_cannot_be_taken_back_is_named_and_taken_back_by_the_next_call(
    package, plugin, feature, clean, step, kind
) -> None:
    package.load("up.more")
    before = snapshot()
    registry = plugin.start()
    failing = Failing(clean, step, kind, times=3)
    try:
        registry.deactivate()
    except kind:
        assert kind is KeyboardInterrupt
    clean.undo()
    assert failing.raised
    (failed,) = [v for v in registry.status().values() if v.state is State.FAILED]
    assert "still patched" in failed.reason
    assert snapshot() != before
    registry.deactivate()
    assert snapshot() == before


def test_an_interrupted_import_is_patched_when_it_is_tried_again(package, plugin, feature, clean) -> None:
    registry = plugin.start()
    Failing(clean, 2, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        package.load("up.ops")
    clean.undo()
    package.load("up.more")
    assert {verdict.state for verdict in registry.status().values()} == {State.APPLIED}


def test_a_module_that_was_imported_again_is_taken_back_in_both_its_objects(package, plugin, feature) -> None:
    registry = plugin.start()
    first = package.load("up.ops")
    del sys.modules["up.ops"]
    second = package.load("up.ops")
    assert (first.one(), second.one()) == ("ours", "ours")
    registry.deactivate()
    assert (first.one(), second.one()) == (None, None)


def test_a_patch_that_goes_last_does_not_bring_back_one_that_lay_under_it_and_was_taken_back(package, feature) -> None:
    module = package.load("up.ops")
    upstreams = module.one
    patch = next(iter(feature))
    slot = slots.Slot(module, "one")
    below = Binding(patch, slot, upstreams, lambda: "below")
    below.write([slot])
    above = Binding(patch, slot, slot.read(), lambda: "above")
    above.write([slot])
    assert below.restore().overwritten == [str(slot)]
    above.restore()
    assert module.one is upstreams
