"""The host memory of a machine: its ranks' tensors, and one rank's whole model while loading."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from verl_npu_workbench.plan.job import Outcome, PhaseCost
from verl_npu_workbench.plan.planning import Planned
from verl_npu_workbench.plan.verdict import host_peaks

LOAD = PhaseCost(phase="load", peak=0, after=0, holders={}, host=100, host_after=10)
UPDATE = PhaseCost(phase="update actor", peak=0, after=0, holders={}, host=30, host_after=10)


def _peaks(planned: Callable[..., Planned], tied: bool, *others: PhaseCost) -> dict[str, int]:
    made = planned({})
    outcomes = (Outcome(rank=0, phases=[LOAD, UPDATE]), Outcome(rank=4, phases=others))
    model = dataclasses.replace(made.model, tied=tied)
    return host_peaks(dataclasses.replace(made, outcomes=outcomes, model=model))


def test_one_rank_reads_the_model_and_all_ranks_train(planned: Callable[..., Planned]) -> None:
    assert _peaks(planned, False) == {"load": 100 + 7 * 10, "update actor": 8 * 30}


def test_each_rank_reads_a_model_whose_weights_are_tied(planned: Callable[..., Planned]) -> None:
    assert _peaks(planned, True)["load"] == 8 * 100


def test_the_stage_with_the_most_counts(planned: Callable[..., Planned]) -> None:
    assert _peaks(planned, False, dataclasses.replace(UPDATE, host=31))["update actor"] == 8 * 31
