"""What is tried when fine-tuning does not fit."""

from __future__ import annotations

from collections.abc import Callable

from verl_npu.plan.knobs import knobs
from verl_npu.plan.planning import Planned
from verl_npu.plan.verdict import judge

STEP = "training step"
MICRO = "data.micro_batch_size_per_gpu"
Tuned = Callable[..., Planned]


def _changes(plan: Planned) -> list[dict[str, object]]:
    return [dict(knob.changes) for knob in knobs(plan, judge(plan))]


def test_nothing_is_tried_if_it_fits(tuned: Tuned) -> None:
    assert _changes(tuned({STEP: 20.0})) == []


def test_a_step_is_given_smaller_micro_batches(tuned: Tuned) -> None:
    assert _changes(tuned({STEP: 90.0}))[0] == {MICRO: 2}


def test_a_validation_has_the_same_setting(tuned: Tuned) -> None:
    assert _changes(tuned({STEP: 10.0, "validation": 90.0}))[0] == {MICRO: 2}


def test_a_token_budget_is_made_smaller_down_to_a_sequence(tuned: Tuned) -> None:
    assert _changes(tuned({STEP: 90.0}, engines=True))[0] == {"data.max_token_len_per_gpu": 8192}
    smallest = tuned({STEP: 90.0}, engines=True, data__max_token_len_per_gpu=4096)
    assert not [change for change in _changes(smallest) if "data.max_token_len_per_gpu" in change]


def test_recomputation_comes_first_where_it_is_off(tuned: Tuned) -> None:
    plan = tuned({STEP: 90.0}, model__enable_gradient_checkpointing=False)
    assert _changes(plan)[0] == {"model.enable_gradient_checkpointing": True}


def test_sharing_switches_packing_on(tuned: Tuned) -> None:
    assert {"ulysses_sequence_parallel_size": 2, "use_remove_padding": True} in _changes(tuned({STEP: 90.0}))
    assert {"engine.ulysses_sequence_parallel_size": 2} in _changes(tuned({STEP: 90.0}, engines=True))


def test_more_npus_are_torchruns_and_come_last(tuned: Tuned) -> None:
    assert _changes(tuned({STEP: 90.0}))[-1] == {"--nnodes": 2}


def test_a_step_that_more_npus_would_not_divide_is_given_smaller_micro_batches_with_them(tuned: Tuned) -> None:
    plan = tuned({STEP: 90.0}, data__micro_batch_size_per_gpu=16)
    assert _changes(plan)[-1] == {"--nnodes": 2, MICRO: 8}


def test_all_npus_are_used_before_there_are_more(tuned: Tuned) -> None:
    assert _changes(tuned({STEP: 90.0}, engines=True, engine__fsdp_size=4))[-1] == {"engine.fsdp_size": -1}


def test_a_state_that_does_not_fit_is_not_given_smaller_micro_batches(tuned: Tuned) -> None:
    found = _changes(tuned({STEP: 90.0}, state=80.0))
    assert not [change for change in found if MICRO in change]
    assert found[-1] == {"--nnodes": 2}


def test_fsdp1_keeps_the_state_on_the_host_and_fsdp2_cannot(tuned: Tuned) -> None:
    keys = ("model.fsdp_config.cpu_offload", "model.fsdp_config.offload_params")
    off = {key.replace(".", "__"): False for key in keys}
    of_fsdp1 = _changes(tuned({STEP: 90.0}, state=80.0, model__strategy="fsdp", **off))
    assert of_fsdp1[0] == dict.fromkeys(keys, True)
    assert not [change for change in _changes(tuned({STEP: 90.0}, state=80.0, **off)) if keys[0] in change]
