"""The verdict on a plan: tensors, the reserve, and the rollout engine beside the memory that the trainer keeps."""

from __future__ import annotations

import dataclasses

import pytest
from verl_npu_workbench.jobs.keys import FREE_CACHE_ENGINE
from verl_npu_workbench.plan.hardware import GIB, reserve_of
from verl_npu_workbench.plan.planning import Planned
from verl_npu_workbench.plan.verdict import Fit, PhaseFit, allocated, judge

from .conftest import ALONE, SEPARATE


def test_a_phase_below_the_memory_fits(planned) -> None:
    verdict = judge(planned({"update actor": 50.0}))
    assert verdict.fit is Fit.FITS


def test_the_reserve_is_part_of_what_is_needed(planned) -> None:
    verdict = judge(planned({"update actor": 58.0}))
    update = next(phase for phase in verdict.phases if phase.phase == "update actor")
    assert update.needed == update.tensors + sum(each.size for each in verdict.reserve)
    assert (update.fit, verdict.fit) == (Fit.DOES_NOT, Fit.DOES_NOT)


@pytest.mark.parametrize(("fraction", "fit"), [(0.4, Fit.MAY_NOT), (1, Fit.DOES_NOT), (0, Fit.DOES_NOT)])
def test_an_optimizer_that_is_partly_on_the_host_is_not_refused(planned, fraction: float, fit: Fit) -> None:
    """The run whose peak was 43.53 GiB, where its plan has 121.56: benchmarks/predictions/recipe-dppo-30b.json."""
    optimizer = "actor_rollout_ref.actor.optim.override_optimizer_config"
    asked = {f"{optimizer}.optimizer_cpu_offload": True, f"{optimizer}.optimizer_offload_fraction": fraction}
    megatron = {"actor_rollout_ref.actor.strategy": "megatron", **asked}
    assert judge(planned({"update actor": 121.6}, state=90.0, **megatron)).fit is fit
    fsdp = planned({"update actor": 121.6}, state=90.0, **asked)
    assert judge(fsdp).fit is Fit.DOES_NOT, "FSDP has no such optimizer"
    without = planned({"update actor": 121.6}, state=30.0, **megatron)
    assert judge(without).fit is Fit.DOES_NOT, "it does not fit without the optimizer either"


def test_the_engine_needs_its_share_beside_what_the_trainer_keeps(planned) -> None:
    assert judge(planned({"update actor": 40.0}, kept=10.0)).fit is Fit.FITS
    verdict = judge(planned({"update actor": 40.0}, kept=25.0))
    assert [phase.phase for phase in verdict.phases if phase.fit is Fit.DOES_NOT] == ["rollout"]


def test_an_engine_without_room_for_one_sequence_does_not_fit(planned) -> None:
    small = planned({"update actor": 1.0}, **{"actor_rollout_ref.rollout.gpu_memory_utilization": 0.15})
    assert judge(small).fit is Fit.DOES_NOT
    assert "the engine's weights leave too little memory for the key-value cache" in small.rollout.notes[0]
    needed = next(phase.needed for phase in judge(small).phases if phase.phase == "rollout")
    assert needed > small.rollout.least > small.rollout.taken


@pytest.mark.parametrize("utilization", [0.15, 0.6])
def test_holders_together_hold_all_that_is_needed(planned, utilization: float) -> None:
    plan = planned(
        {"update actor": 40.0}, kept=10.0, **{"actor_rollout_ref.rollout.gpu_memory_utilization": utilization}
    )
    verdict = judge(plan)
    assert {phase.phase: sum(phase.holders.values()) for phase in verdict.phases} == {
        phase.phase: phase.needed for phase in verdict.phases
    }
    rollout = next(phase for phase in verdict.phases if phase.phase == "rollout")
    assert rollout.holders["weights"] == 10 * GIB
    assert rollout.held == plan.rollout.needed + 10 * GIB


def test_an_engine_with_npus_of_its_own_has_no_part_of_the_trainers(planned) -> None:
    plan = planned({"update actor": 40.0}, kept=10.0, **{"rollout.n_gpus_per_node": 8})
    rollout = next(phase for phase in judge(plan).phases if phase.phase == "rollout")
    assert (rollout.needed, rollout.holders["reserve"]) == (plan.rollout.needed, 0)
    assert "weights" not in rollout.holders


def test_verls_own_figure_is_the_peak_of_the_trainers_tensors(planned) -> None:
    plan = planned({"load": 10.0, "update actor": 40.0, "weight sync": 45.0, "checkpoint": 50.0})
    (*others, sync, checkpoint) = plan.outcomes[0].phases
    woken = dataclasses.replace(sync, holders={"rollout engine's weights": 15 * GIB})
    last = dataclasses.replace(plan.outcomes[0], rank=4, phases=[*others, woken, checkpoint])
    first = dataclasses.replace(plan.outcomes[0], phases=[sync])
    assert allocated(dataclasses.replace(plan, outcomes=(last, first))) == {"trainer": 40 * GIB, "engine": 0}


def test_verls_own_figure_counts_an_engine_in_the_same_process(planned) -> None:
    plan = dataclasses.replace(planned({"update actor": 40.0}), inside=True)
    assert allocated(plan) == {"trainer": 40 * GIB, "engine": plan.rollout.taken - plan.rollout.buffers}


def _by_name(plan: Planned) -> dict[str, PhaseFit]:
    return {phase.phase: phase for phase in judge(plan).phases}


def test_both_sides_of_a_separate_trainer_are_judged(planned) -> None:
    plan = planned({"update actor": 40.0, "weight sync": 10.0}, kept=10.0, **SEPARATE)
    found = _by_name(plan)
    assert list(found) == ["rollout", "servers", "update actor", "weight sync", "servers' sync"]
    assert judge(plan).reserve[0].size == 3 / 2 * judge(planned({"update actor": 40.0})).reserve[0].size
    # The trainer's NPUs serve beside the trainer's memory, the others have the engine alone.
    assert found["rollout"].held == found["servers"].needed + 10 * GIB == plan.rollout.needed + 10 * GIB
    assert all(sum(each.holders.values()) == each.needed for each in found.values())
    alone = _by_name(planned({"update actor": 40.0}, kept=10.0, **ALONE))
    assert "servers" not in alone
    assert alone["rollout"].needed == plan.rollout.needed


def test_a_sync_needs_its_buckets_beside_an_engine_that_keeps_its_cache(planned) -> None:
    big = SEPARATE | {"actor_rollout_ref.rollout.gpu_memory_utilization": 0.9}
    sync = _by_name(planned({"update actor": 1.0}, **big))["servers' sync"]
    assert (sync.fit, sync.holders["communication buffers"], sync.holders["key-value cache"]) == (Fit.FITS, 6 * GIB, 0)
    kept = _by_name(planned({"update actor": 1.0}, **(big | {FREE_CACHE_ENGINE: False})))["servers' sync"]
    assert kept.fit is Fit.DOES_NOT
    assert kept.needed > kept.holders["key-value cache"] + 6 * GIB > 0.7 * 61 * GIB


def test_a_rank_that_failed_is_no_plan_that_fits(planned) -> None:
    done = planned({"update actor": 1.0})
    failed = dataclasses.replace(done.outcomes[0], error="ValueError: x", failed_in="load")
    assert judge(dataclasses.replace(done, outcomes=(failed,))).fit is Fit.FAILED


@pytest.mark.parametrize(
    ("exports", "size"), [({}, 200), ({"HCCL_BUFFSIZE": "512"}, 512), ({"HCCL_BUFFSIZE": "x"}, 200)]
)
def test_each_communicator_has_buffers_of_both_directions(exports: dict[str, str], size: int) -> None:
    buffers = reserve_of(3, 0, exports)[0]
    assert buffers.size == 3 * 2 * size << 20
    assert "HCCL_BUFFSIZE" in buffers.source


def test_all_of_the_reserve_has_a_source() -> None:
    assert all(each.source for each in reserve_of(1, GIB, {}))


def test_fine_tuning_has_no_rollout(tuned) -> None:
    verdict = judge(tuned({"load": 5.0, "training step": 70.0, "checkpoint": 6.0}))
    assert [phase.phase for phase in verdict.phases] == ["load", "training step", "checkpoint"]
    assert (verdict.fit, verdict.worst.phase) == (Fit.DOES_NOT, "training step")
