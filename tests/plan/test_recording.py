"""What phases cost, from a ledger of blocks."""

from __future__ import annotations

import pytest

from verl_npu.plan.phase import Holder, Phase
from verl_npu.plan.rank.recording import Recording

pytest.importorskip("numpy")


class Ledger:
    """A device's ledger that is written by hand."""

    def __init__(self) -> None:
        self.blocks: list[list[int]] = []
        self.clock = 0
        self.work: list[tuple[str, int, float, float, float]] = []
        self.messages: list[tuple[str, int, int, float]] = []

    def allocate(self, size: int, holder: Holder = Holder.ACTIVATIONS) -> list[int]:
        self.clock += 1
        self.blocks.append([size, self.clock, 0, holder.number])
        return self.blocks[-1]

    def free(self, block: list[int]) -> None:
        self.clock += 1
        block[2] = self.clock

    def ledger_blocks(self) -> list[list[int]]:
        return self.blocks

    def ledger_clock(self) -> int:
        return self.clock

    def take_ledger(self) -> tuple[list[tuple[str, int, float, float, float]], list[tuple[str, int, int, float]]]:
        taken = self.work, self.messages
        self.work, self.messages = [], []
        return taken


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def recording(ledger: Ledger) -> Recording:
    return Recording(ledger)  # type: ignore[arg-type]


def test_a_phase_has_its_peak_and_who_held_it(ledger: Ledger, recording: Recording) -> None:
    with recording.phase(Phase.LOAD):
        ledger.allocate(100, Holder.WEIGHTS)
    with recording.phase(Phase.LOG_PROB):
        first = ledger.allocate(30)
        second = ledger.allocate(5, Holder.MESSAGES)
        ledger.free(first)
        ledger.free(second)
    load, log_prob = recording.costs()
    assert (load.before, load.peak, load.after) == (0, 100, 100)
    assert (log_prob.before, log_prob.peak, log_prob.after) == (100, 135, 100)
    assert log_prob.holders == {Holder.WEIGHTS.value: 100, Holder.MESSAGES.value: 5, Holder.ACTIVATIONS.value: 30}


def test_of_a_phase_that_is_done_twice_the_dearer_one_counts(ledger: Ledger, recording: Recording) -> None:
    with recording.phase(Phase.UPDATE_ACTOR):
        ledger.free(ledger.allocate(10))
        ledger.allocate(7, Holder.OPTIMIZER)
    with recording.phase(Phase.UPDATE_ACTOR):
        ledger.free(ledger.allocate(10))
    (update,) = recording.costs()
    assert (update.peak, update.holders[Holder.OPTIMIZER.value]) == (17, 7)


def test_work_and_messages_belong_to_their_phase(ledger: Ledger, recording: Recording) -> None:
    ledger.work = [("aten::mm", 1, 1.0, 1.0, 9.0)]
    with recording.phase(Phase.LOG_PROB):
        ledger.work = [("aten::mm", 3, 1.0, 1.0, 2.0), ("copy between host and NPU", 1, 0.0, 50.0, 0.0)]
        ledger.messages = [("all_reduce", 8, 2, 64.0)]
        ledger.allocate(1)
    (cost,) = recording.costs()
    assert (cost.calls, cost.seconds, cost.copied) == (3, 2.0, 50.0)
    assert cost.messages == [("all_reduce", 8, 2, 64.0)]


def test_a_phase_that_fails_is_recorded_up_to_there(ledger: Ledger, recording: Recording) -> None:
    def failing() -> None:
        with recording.phase(Phase.LOAD):
            ledger.allocate(100)
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        failing()
    assert recording.costs()[0].peak == 100


def test_a_timeline_has_the_highest_moment_of_each_step(ledger: Ledger, recording: Recording) -> None:
    with recording.phase(Phase.LOAD):
        for _ in range(2000):
            ledger.free(ledger.allocate(1))
        ledger.free(ledger.allocate(1000))
    points = recording.timeline()
    assert len(points) <= 402
    assert max(sum(point.holders.values()) for point in points) == 1000
