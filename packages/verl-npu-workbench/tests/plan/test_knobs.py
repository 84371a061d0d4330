from __future__ import annotations

from collections.abc import Callable

import pytest
from verl_npu_workbench.plan.knobs import knobs
from verl_npu_workbench.plan.planning import Planned
from verl_npu_workbench.plan.verdict import Fit, judge

from .conftest import SEPARATE

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
SIZE = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
UPDATE, STEP = "update actor", "training step"
MICRO, BUDGET = "data.micro_batch_size_per_gpu", "data.max_token_len_per_gpu"
Plan = Callable[..., Planned]


def _changes(plan: Planned) -> list[dict[str, object]]:
    return [dict(knob.changes) for knob in knobs(plan, judge(plan))]


def _keys(plan: Planned) -> list[str]:
    return [key for change in _changes(plan) for key in change]


@pytest.fixture
def plan_of(planned: Plan, tuned: Plan) -> Plan:
    """Return a function that makes a plan: of fine-tuning if one of its phases is a training step."""

    def make(peaks: dict[str, float], **given: object) -> Planned:
        named = given
        return (tuned if STEP in peaks else planned)(peaks, **named)

    return make


@pytest.mark.parametrize("phase", [UPDATE, STEP])
def test_nothing_is_tried_if_it_fits(plan_of: Plan, phase: str) -> None:
    assert _changes(plan_of({phase: 10.0})) == []


FIRST = {
    "a smaller micro batch": ({UPDATE: 90.0}, {}, {SIZE: 2}),
    "one that is as small at once as it has to be": ({UPDATE: 190.0}, {}, {SIZE: 1}),
    # Of 15 sequences verl makes micro batches of 5, and not of 2.
    "a part of the mini batch": ({UPDATE: 90.0}, {SIZE: 5, f"{ACTOR}.ppo_mini_batch_size": 30}, {SIZE: 1}),
    "recomputation, where it is off": (
        {UPDATE: 90.0},
        {"actor_rollout_ref.model.enable_gradient_checkpointing": False},
        {"actor_rollout_ref.model.enable_gradient_checkpointing": True},
    ),
    "a smaller micro batch of fine-tuning": ({STEP: 90.0}, {}, {MICRO: 2}),
    "the same setting for its validation": ({STEP: 10.0, "validation": 90.0}, {}, {MICRO: 2}),
    "a smaller budget": ({STEP: 90.0}, {"engines": True}, {BUDGET: 8192}),
    "recomputation in fine-tuning": (
        {STEP: 90.0},
        {"model.enable_gradient_checkpointing": False},
        {"model.enable_gradient_checkpointing": True},
    ),
}


@pytest.mark.parametrize(("peaks", "given", "change"), FIRST.values(), ids=FIRST)
def test_first_is_what_costs_least(plan_of: Plan, peaks, given, change) -> None:
    assert _changes(plan_of(peaks, **given))[0] == change


LAST = {
    "a part of a server is made whole": (
        {UPDATE: 150.0},
        {"state": 130.0, "trainer.n_gpus_per_node": 4},
        {"trainer.n_gpus_per_node": 8, "trainer.nnodes": 2},
    ),
    "torchrun's nodes": ({STEP: 90.0}, {}, {"--nnodes": 2}),
    "and smaller micro batches, where a step asks for it": (
        {STEP: 90.0},
        {MICRO: 16},
        {"--nnodes": 2, MICRO: 8},
    ),
    "all NPUs that there are": ({STEP: 90.0}, {"engines": True, "engine.fsdp_size": 4}, {"engine.fsdp_size": -1}),
    "more NPUs for a state that does not fit": ({STEP: 90.0}, {"state": 80.0}, {"--nnodes": 2}),
}


@pytest.mark.parametrize(("peaks", "given", "change"), LAST.values(), ids=LAST)
def test_last_are_more_npus(plan_of: Plan, peaks, given, change) -> None:
    assert _changes(plan_of(peaks, **given))[-1] == change


@pytest.mark.parametrize(
    ("given", "changes"),
    [({}, {"trainer.nnodes": 4}), ({SIZE: 8}, {"trainer.nnodes": 4, SIZE: 4})],
    ids=["nodes", "and smaller micro batches, where the mini batch asks for it"],
)
def test_a_model_whose_state_does_not_fit_gets_nothing_but_more_npus(plan_of: Plan, given, changes) -> None:
    assert _changes(plan_of({UPDATE: 150.0}, state=130.0, **given)) == [changes]


NEVER = {
    "a micro batch of one sequence": ({UPDATE: 90.0}, {SIZE: 1}, SIZE),
    "heads that do not divide": (
        {UPDATE: 90.0},
        {f"{ACTOR}.ulysses_sequence_parallel_size": 8},
        f"{ACTOR}.ulysses_sequence_parallel_size",
    ),
    "a budget of one sequence": ({STEP: 90.0}, {"engines": True, BUDGET: 4096}, BUDGET),
    "micro batches beside a state that does not fit": ({STEP: 90.0}, {"state": 80.0}, MICRO),
}


@pytest.mark.parametrize(("peaks", "given", "key"), NEVER.values(), ids=NEVER)
def test_what_would_not_help_is_not_tried(plan_of: Plan, peaks, given, key: str) -> None:
    assert key not in _keys(plan_of(peaks, **given))


def test_an_overdrawn_budget_is_kept_to_before_it_is_made_smaller(planned: Plan) -> None:
    key = f"{ACTOR}.ppo_max_token_len_per_gpu"
    dynamic = {"actor_rollout_ref.actor.use_dynamic_bsz": True, key: 4200}
    changes = _changes(planned({"update actor": 90.0}, **dynamic))
    assert changes[:2] == [{"VERL_NPU_TOKEN_BUDGET": 1}, {key: 4096}]


@pytest.mark.parametrize("budget", [16 * 4096, 12288])
def test_a_budget_that_is_hardly_overdrawn_is_made_smaller(planned: Plan, budget: int) -> None:
    key = f"{ACTOR}.ppo_max_token_len_per_gpu"
    dynamic = {"actor_rollout_ref.actor.use_dynamic_bsz": True, key: budget}
    assert list(_changes(planned({"update actor": 90.0}, **dynamic))[0]) == [key]


def test_the_engine_gives_up_what_the_trainer_keeps(planned: Plan) -> None:
    change = _changes(planned({"update actor": 40.0}, kept=25.0))[0]
    [(key, value)] = change.items()
    assert key == f"{ROLLOUT}.gpu_memory_utilization"
    again = planned({"update actor": 40.0}, kept=25.0, **{key: value})
    assert judge(again).fit is Fit.FITS


def test_sharing_and_more_npus_come_last(planned: Plan) -> None:
    assert _keys(planned({UPDATE: 90.0}))[-2:] == [f"{ACTOR}.ulysses_sequence_parallel_size", "trainer.nnodes"]


def test_offload_is_tried_where_the_state_is_not_needed(planned: Plan) -> None:
    offloads = {f"{ACTOR}.fsdp_config.optimizer_offload", f"{ACTOR}.fsdp_config.param_offload"}
    of_update, of_log_prob = (set(_keys(planned({phase: 90.0}))) for phase in (UPDATE, "log-probabilities"))
    assert not offloads & of_update
    assert offloads < of_log_prob


def test_all_of_an_optimizer_that_is_partly_on_the_host_is_tried_there_first(planned: Plan) -> None:
    optimizer = f"{ACTOR}.optim.override_optimizer_config"
    fraction = f"{optimizer}.optimizer_offload_fraction"
    asked = {f"{ACTOR}.strategy": "megatron", f"{optimizer}.optimizer_cpu_offload": True}
    assert _changes(planned({UPDATE: 90.0}, state=9.0, **asked, **{fraction: 0.4}))[0] == {fraction: 1.0}
    assert fraction not in _keys(planned({UPDATE: 90.0}, **asked, **{fraction: 0.4})), "the phase has no optimizer"
    assert fraction not in _keys(planned({UPDATE: 90.0}, state=9.0, **asked, **{fraction: 1.0}))


def test_the_critic_is_offloaded_for_the_actors_update(planned: Plan) -> None:
    plan = planned(
        {"update actor": 90.0},
        **{
            "algorithm.adv_estimator": "gae",
            "critic.model.fsdp_config.optimizer_offload": False,
            "critic.model.fsdp_config.param_offload": False,
        },
    )
    keys = _keys(plan)
    assert "critic.model.fsdp_config.optimizer_offload" in keys
    assert f"{ACTOR}.fsdp_config.optimizer_offload" not in keys


def test_an_engine_without_room_gets_more(planned: Plan) -> None:
    plan = planned({"update actor": 1.0}, **{"actor_rollout_ref.rollout.gpu_memory_utilization": 0.1})
    [(key, value)] = _changes(plan)[0].items()
    assert key == f"{ROLLOUT}.gpu_memory_utilization"
    again = planned({"update actor": 1.0}, **{"actor_rollout_ref.rollout.gpu_memory_utilization": value})
    assert judge(again).fit is Fit.FITS


def test_sharing_switches_packing_on(tuned: Plan) -> None:
    assert {"ulysses_sequence_parallel_size": 2, "use_remove_padding": True} in _changes(tuned({STEP: 90.0}))
    assert {"engine.ulysses_sequence_parallel_size": 2} in _changes(tuned({STEP: 90.0}, engines=True))


def test_fsdp1_keeps_the_state_on_the_host_and_fsdp2_cannot(tuned: Plan) -> None:
    keys = ("model.fsdp_config.cpu_offload", "model.fsdp_config.offload_params")
    off = dict.fromkeys(keys, False)
    of_fsdp1 = _changes(tuned({STEP: 90.0}, state=80.0, **{"model.strategy": "fsdp"}, **off))
    assert of_fsdp1[0] == dict.fromkeys(keys, True)
    assert not [change for change in _changes(tuned({STEP: 90.0}, state=80.0, **off)) if keys[0] in change]


def test_an_engine_whose_weights_are_too_large_is_divided(planned: Plan) -> None:
    plan = planned({"update actor": 30.0}, kept=45.0, **{"actor_rollout_ref.rollout.tensor_model_parallel_size": 1})
    assert {f"{ROLLOUT}.tensor_model_parallel_size": 2} in _changes(plan)


def test_a_sync_that_does_not_fit_gets_smaller_buckets_and_the_servers_cache(planned: Plan) -> None:
    given = SEPARATE | {f"{ROLLOUT}.gpu_memory_utilization": 0.9, f"{ROLLOUT}.free_cache_engine": False}
    plan = planned({"update actor": 1.0}, **given)
    assert [phase.phase for phase in judge(plan).phases if phase.fit is Fit.DOES_NOT] == ["servers' sync"]
    bucket, cache = _changes(plan)[:2]
    assert bucket == {f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 1145}
    assert cache == {f"{ROLLOUT}.free_cache_engine": True}
    assert judge(planned({"update actor": 1.0}, **(given | cache))).fit is Fit.FITS
