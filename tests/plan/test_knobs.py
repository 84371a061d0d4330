"""What is tried when a plan does not fit, and that it is tried in plans."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from verl_npu.plan import fitting
from verl_npu.plan.fitting import make_fit
from verl_npu.plan.hardware import GIB, HARDWARE
from verl_npu.plan.knobs import knobs
from verl_npu.plan.phase import Holder
from verl_npu.plan.planning import Planned, Request
from verl_npu.plan.verdict import Fit, judge

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def _changes(plan: Planned) -> list[dict[str, object]]:
    return [dict(knob.changes) for knob in knobs(plan, judge(plan))]


def test_nothing_is_tried_if_it_fits(planned) -> None:
    assert _changes(planned({"update actor": 10.0})) == []


def test_an_update_is_given_smaller_micro_batches(planned) -> None:
    assert _changes(planned({"update actor": 90.0}))[0] == {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2}


def test_an_overdrawn_budget_is_kept_to_before_it_is_made_smaller(planned) -> None:
    key = f"{ACTOR}.ppo_max_token_len_per_gpu"
    dynamic = {"actor_rollout_ref__actor__use_dynamic_bsz": True, key.replace(".", "__"): 4200}
    changes = _changes(planned({"update actor": 90.0}, **dynamic))
    assert changes[:2] == [{"VERL_NPU_TOKEN_BUDGET": 1}, {key: 4096}]


@pytest.mark.parametrize("budget", [16 * 4096, 12288])
def test_a_budget_that_is_hardly_overdrawn_is_made_smaller(planned, budget: int) -> None:
    key = f"{ACTOR}.ppo_max_token_len_per_gpu"
    dynamic = {"actor_rollout_ref__actor__use_dynamic_bsz": True, key.replace(".", "__"): budget}
    assert list(_changes(planned({"update actor": 90.0}, **dynamic))[0]) == [key]


def test_recomputation_comes_first_where_it_is_off(planned) -> None:
    plan = planned({"update actor": 90.0}, actor_rollout_ref__model__enable_gradient_checkpointing=False)
    assert _changes(plan)[0] == {"actor_rollout_ref.model.enable_gradient_checkpointing": True}


def test_a_micro_batch_of_one_sequence_is_not_halved(planned) -> None:
    plan = planned({"update actor": 90.0}, actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu=1)
    assert not [change for change in _changes(plan) if f"{ACTOR}.ppo_micro_batch_size_per_gpu" in change]


def test_the_engine_gives_up_what_the_trainer_keeps(planned) -> None:
    change = _changes(planned({"update actor": 40.0}, kept=25.0))[0]
    [(key, value)] = change.items()
    assert key == f"{ROLLOUT}.gpu_memory_utilization"
    again = planned({"update actor": 40.0}, kept=25.0, **{key.replace(".", "__"): value})
    assert judge(again).fit is Fit.FITS


def test_sharing_and_more_npus_come_last(planned) -> None:
    keys = [key for change in _changes(planned({"update actor": 90.0})) for key in change]
    assert keys[-2:] == [f"{ACTOR}.ulysses_sequence_parallel_size", "trainer.nnodes"]


def test_offload_is_tried_where_the_state_is_not_needed(planned) -> None:
    offloads = {f"{ACTOR}.fsdp_config.optimizer_offload", f"{ACTOR}.fsdp_config.param_offload"}
    of_update = {key for change in _changes(planned({"update actor": 90.0})) for key in change}
    of_log_prob = {key for change in _changes(planned({"log-probabilities": 90.0})) for key in change}
    assert not offloads & of_update
    assert offloads < of_log_prob


def test_the_critic_is_offloaded_for_the_actors_update(planned) -> None:
    plan = planned(
        {"update actor": 90.0},
        algorithm__adv_estimator="gae",
        critic__model__fsdp_config__optimizer_offload=False,
        critic__model__fsdp_config__param_offload=False,
    )
    keys = [key for change in _changes(plan) for key in change]
    assert "critic.model.fsdp_config.optimizer_offload" in keys
    assert f"{ACTOR}.fsdp_config.optimizer_offload" not in keys


def test_a_model_whose_state_does_not_fit_gets_no_smaller_micro_batches_but_more_npus(planned) -> None:
    plan = _with_state(planned({"update actor": 150.0}), 130.0)
    assert _changes(plan) == [{"trainer.nnodes": 4}]


def test_a_micro_batch_is_made_as_small_at_once_as_it_has_to_be(planned) -> None:
    plan = planned({"update actor": 190.0})
    assert _changes(plan)[0] == {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1}


def test_a_micro_batch_stays_a_part_of_the_mini_batch(planned) -> None:
    # Of 15 sequences verl makes micro batches of 5, and not of 2.
    plan = planned(
        {"update actor": 90.0},
        actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu=5,
        actor_rollout_ref__actor__ppo_mini_batch_size=30,
    )
    assert plan.share.mini_sequences == 15
    assert _changes(plan)[0] == {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1}


def test_more_npus_take_smaller_micro_batches_if_the_mini_batch_asks_for_it(planned) -> None:
    plan = _with_state(planned({"update actor": 150.0}, actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu=8), 130)
    assert _changes(plan) == [{"trainer.nnodes": 4, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4}]


def test_a_part_of_a_server_is_made_whole_first(planned) -> None:
    plan = _with_state(planned({"update actor": 150.0}, trainer__n_gpus_per_node=4), 130.0)
    assert _changes(plan)[-1] == {"trainer.n_gpus_per_node": 8, "trainer.nnodes": 2}


def test_an_engine_without_room_gets_more(planned) -> None:
    plan = planned({"update actor": 1.0}, actor_rollout_ref__rollout__gpu_memory_utilization=0.1)
    [(key, value)] = _changes(plan)[0].items()
    assert key == f"{ROLLOUT}.gpu_memory_utilization"
    again = planned({"update actor": 1.0}, actor_rollout_ref__rollout__gpu_memory_utilization=value)
    assert judge(again).fit is Fit.FITS


def test_an_engine_whose_weights_are_too_large_is_divided(planned) -> None:
    plan = planned({"update actor": 30.0}, kept=45.0, actor_rollout_ref__rollout__tensor_model_parallel_size=1)
    assert {f"{ROLLOUT}.tensor_model_parallel_size": 2} in _changes(plan)


def _with_state(plan: Planned, state: float) -> Planned:
    """So many GiB of the peaks are weights."""
    outcome = plan.outcomes[0]
    holders = {Holder.WEIGHTS.value: int(state * GIB)}
    costs = [dataclasses.replace(cost, holders=holders) for cost in outcome.phases]
    return dataclasses.replace(plan, outcomes=(dataclasses.replace(outcome, phases=costs),))


def test_heads_that_do_not_divide_are_not_shared_among_more_npus(planned) -> None:
    plan = planned({"update actor": 90.0}, actor_rollout_ref__actor__ulysses_sequence_parallel_size=8)
    assert not [change for change in _changes(plan) if f"{ACTOR}.ulysses_sequence_parallel_size" in change]


@pytest.fixture
def request_of_a_user(tmp_path: Path) -> Request:
    return Request(tmp_path, HARDWARE["a2"])


def test_a_knob_is_planned_before_it_is_proposed(planned, request_of_a_user, monkeypatch) -> None:
    asked = []

    def plan(trainer, tree, request, told):
        asked.append(dict(request.changes))
        size = request.changes[-1][1] if request.changes[-1][0].endswith("micro_batch_size_per_gpu") else 4
        return planned({"update actor": 30 + 18.0 * size}, actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu=size)

    monkeypatch.setattr(fitting, "plan", plan)
    first = planned({"update actor": 102.0})
    tries = make_fit(first.trainer, Path(), request_of_a_user, first, judge(first))
    assert asked == [{f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2}, {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1}]
    assert [each.verdict.fit for each in tries] == [Fit.DOES_NOT, Fit.FITS]


def test_a_knob_that_does_not_help_is_turned_back(planned, request_of_a_user, monkeypatch) -> None:
    seen = []

    def plan(trainer, tree, request, told):
        seen.append(dict(request.changes))
        offloaded = f"{ACTOR}.fsdp_config.optimizer_offload" in dict(request.changes)
        return planned({"log-probabilities": 40.0 if offloaded else 100.0})

    monkeypatch.setattr(fitting, "plan", plan)
    first = planned({"log-probabilities": 100.0})
    tries = make_fit(first.trainer, Path(), request_of_a_user, first, judge(first))
    assert tries[-1].verdict.fit is Fit.FITS
    assert dict(tries[-1].changes) == {f"{ACTOR}.fsdp_config.optimizer_offload": True}


def test_what_does_not_fit_with_anything_ends(planned, request_of_a_user, monkeypatch) -> None:
    monkeypatch.setattr(fitting, "plan", lambda *_: planned({"load": 500.0}))
    first = planned({"load": 500.0})
    tries = make_fit(first.trainer, Path(), request_of_a_user, first, judge(first))
    assert tries
    assert all(each.verdict.fit is Fit.DOES_NOT for each in tries)


def test_a_failed_try_is_turned_back(planned, request_of_a_user, monkeypatch) -> None:
    def plan(trainer, tree, request, told):
        done = planned({"update actor": 1.0})
        failed = dataclasses.replace(done.outcomes[0], error="AssertionError", failed_in="load")
        return dataclasses.replace(done, outcomes=(failed,)) if len(request.changes) == 1 else done

    monkeypatch.setattr(fitting, "plan", plan)
    first = planned({"update actor": 100.0})
    tries = make_fit(first.trainer, Path(), request_of_a_user, first, judge(first))
    assert all(each.verdict.fit is Fit.FAILED for each in tries)
