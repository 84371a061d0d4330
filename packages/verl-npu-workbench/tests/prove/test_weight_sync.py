"""The share of a raw broadcast's speed that a weight sync reaches, judged by the kind of NPU."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
from verl_npu_workbench.prove.record import NotPossible, Recorder, Wrong
from verl_npu_workbench.prove.stages import ranks, weight_sync
from verl_npu_workbench.prove.stages.setup import Setup

UNDER_THE_WHEEL = "virtual NPUs under torch_npu 2.13.0"


@pytest.mark.parametrize(
    ("simulated", "error"),
    [("", Wrong), ("virtual NPUs", Wrong), (UNDER_THE_WHEEL, NotPossible)],
)
def test_a_slow_sync_is_a_fault_but_where_operators_are_slow_to_start(
    monkeypatch: pytest.MonkeyPatch, simulated: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match="10%"):
        share(monkeypatch, simulated, sync=10.0)


def test_a_sync_that_is_fast_enough_passes_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share(monkeypatch, UNDER_THE_WHEEL, sync=2.0)[0] == "50% of a raw broadcast's speed"


def share(monkeypatch: pytest.MonkeyPatch, simulated: str, sync: float) -> tuple[str, dict[str, float]]:
    torch_npu = ModuleType("torch_npu")
    torch_npu.__simulated__ = simulated  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu)
    ended = ranks.Ended(status=0, facts={"raw": 1.0, "sync": sync}, last="")
    monkeypatch.setattr(ranks, "started", lambda *given: [ended])
    setup = Setup(record=cast(Recorder, None), scratch=Path(), asked=2, ends=0.0, now=time.monotonic)
    return weight_sync._share(setup)
