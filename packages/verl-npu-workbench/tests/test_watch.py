"""The watch of a training: where the time of a step goes, and its current state.

Each rule for odd values fires on its own fault, at its step, and none fires on a sound training.
"""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from verl_npu_workbench import watch
from verl_npu_workbench.logs.training import Assembly, StepLine
from verl_npu_workbench.watch import OTHER, Kind, content, oddities, split, state_of

from tests.comparison.logs import log_of


def test_phases_are_the_timers_beside_each_other_and_the_rest() -> None:
    metrics = {
        "timing_s/step": 10.0,
        "timing_s/gen": 4.0,
        "timing_s/update_actor": 5.0,
        "timing_s/generate_sequences": 3.5,
        "timing_s/agent_loop/tool_calls/max": 2.0,
        "timing_s/start_profile": 0.1,
        "timing_per_token_ms/gen": 0.2,
        "perf/time_per_step": 10.0,
    }
    assert split(metrics) == pytest.approx({"update_actor": 5.0, "gen": 4.0, OTHER: 1.0})
    assert next(iter(split(metrics))) == "update_actor"


def test_phases_that_run_at_once_leave_no_rest() -> None:
    assert split({"timing_s/step": 5.0, "timing_s/gen": 4.0, "timing_s/update_actor": 3.0}) == {
        "gen": 4.0,
        "update_actor": 3.0,
    }


@pytest.mark.parametrize(
    "metrics",
    [{}, {"timing_s/step": 5.0}, {"timing_s/gen": float("nan")}, {"timing_s/step": float("inf")}],
)
def test_a_step_without_timers_has_no_phases(metrics: dict[str, float]) -> None:
    assert split(metrics) == {}


STEPS = 30


def sound(seed: int = 0) -> dict[int, dict[str, float]]:
    """Return a sound training: noisy, with a slow first step, an entropy that falls, a growing drift."""
    noise = random.Random(seed)
    return {
        step: {
            "critic/rewards/mean": step / STEPS,
            "actor/entropy": 2.0 - step / STEPS,
            "actor/grad_norm": 0.5 * noise.uniform(0.5, 2.0),
            "training/rollout_probs_diff_mean": 0.003 * noise.uniform(0.8, 1.2),
            "timing_s/step": (60.0 if step == 1 else 20.0) * noise.uniform(0.9, 1.1),
            "timing_s/gen": 8.0,
            "timing_s/update_actor": 8.0,
        }
        for step in range(1, STEPS + 1)
    }


@pytest.mark.parametrize("seed", range(10))
def test_a_sound_training_is_not_odd(seed: int) -> None:
    assert oddities(log_of(sound(seed))) == []


FAULTS: dict[Kind, tuple[dict[int, dict[str, float]], int, str]] = {
    Kind.NOT_FINITE: (
        {12: {"actor/pg_loss": math.nan}, 13: {"actor/pg_loss": math.inf}},
        12,
        "actor/pg_loss is NaN or infinite at step 12 to 13",
    ),
    Kind.ENTROPY: (
        {step: {"actor/entropy": 0.1} for step in range(20, 31)},
        20,
        "fell below 10% of its initial 1.9; it is now 0.1",
    ),
    Kind.GRAD_NORM: ({15: {"actor/grad_norm": 30.0}}, 15, "the gradient norm is 30, "),
    Kind.SLOW: (
        {17: {"timing_s/step": 70.0, "timing_s/save_checkpoint": 45.0}},
        17,
        "; save_checkpoint took 45 s more than usual",
    ),
    Kind.DRIFT: (
        {step: {"training/rollout_probs_diff_mean": 0.02} for step in (22, 25)},
        22,
        "over 0.01 at 2 of 30 steps",
    ),
}


@pytest.mark.parametrize("kind", FAULTS, ids=[kind.name for kind in FAULTS])
def test_each_fault_is_found_and_no_other(kind: Kind) -> None:
    changes, step, text = FAULTS[kind]
    steps = sound()
    for at, metrics in changes.items():
        steps[at] |= metrics
    (found,) = oddities(log_of(steps))
    assert (found.kind, found.step) == (kind, step)
    assert text in found.text


def test_probabilities_that_drift_apart_slowly_are_found() -> None:
    steps = sound()
    for step in steps:
        steps[step]["training/rollout_probs_diff_mean"] = 0.003 + 0.0002 * step
    (found,) = oddities(log_of(steps))
    assert (found.kind, found.step) == (Kind.DRIFT, 26)
    assert "rollout and trainer drift apart" in found.text


def test_nan_where_verl_had_nothing_to_compare_is_not_odd() -> None:
    steps = sound()
    steps[9] |= {"training/rollout_probs_diff_valid": 0, "training/rollout_probs_diff_mean": math.nan}
    steps[9] |= {"training/rollout_actor_probs_pearson_corr": math.nan}
    assert oddities(log_of(steps)) == []
    steps[9] |= {"actor/grad_norm": math.nan}
    assert [odd.kind for odd in oddities(log_of(steps))] == [Kind.NOT_FINITE]


def test_many_metrics_that_are_nan_together_are_one_oddity() -> None:
    steps = sound()
    steps[30] = dict.fromkeys(steps[30], math.nan)
    (found,) = oddities(log_of(steps))
    assert found.text.endswith("and 4 more are NaN or infinite at step 30")


def test_the_first_step_after_a_restart_may_be_slow() -> None:
    lines = [StepLine(step, {"timing_s/step": 20.0}) for step in range(1, 11)]
    lines += [StepLine(step, {"timing_s/step": 90.0 if step == 6 else 20.0}) for step in range(6, 20)]
    assembly = Assembly()
    for line in lines:
        assembly.add(line)
    assert oddities(assembly.log("a log")) == []


def test_few_steps_have_no_median() -> None:
    steps = {step: {"timing_s/step": 10.0**step, "actor/grad_norm": 10.0**step} for step in (1, 2, 3, 4)}
    assert oddities(log_of(steps)) == []


def test_a_log_without_steps_has_no_state() -> None:
    assert state_of(Assembly().log("a log")) is None


def test_the_last_step_its_phases_and_its_speed() -> None:
    steps = {
        step: {
            "timing_s/step": 10.0,
            "timing_s/gen": 4.0 + step,
            "perf/total_num_tokens": 5000,
            "perf/throughput": 250.0,
            "critic/rewards/mean": 0.5,
        }
        for step in (1, 2, 3)
    }
    state = state_of(log_of(steps))
    assert state is not None
    assert (state.step, state.seconds, state.tokens_per_second, state.throughput) == (3, 10.0, 500.0, 250.0)
    assert [(phase.name, phase.seconds, phase.usual) for phase in state.phases] == [
        ("gen", 7.0, 6.0),
        ("the rest", 3.0, 4.0),
    ]
    told = content(state)
    assert told["metrics"] == pytest.approx({"reward": 0.5, "throughput, tokens/s/NPU": 250.0, "step time, s": 10.0})
    assert told["odd"] == []


def test_after_a_restart_the_step_is_the_one_that_runs() -> None:
    assembly = Assembly()
    for step, value in ((1, 1.0), (2, 2.0), (3, 3.0), (2, 9.0)):
        assembly.add(StepLine(step, {"a": value}))
    state = state_of(assembly.log("a log"))
    assert state is not None
    assert state.step == 2


# Warnings before a failure: each with a log that has its sign, and the same noise without it.

LONG = 40


def drifting(seed: int = 0, **grows: float) -> dict[int, dict[str, float]]:
    """Return a noisy training of 40 steps; the named metrics are multiplied by their factors over the run."""
    noise = random.Random(seed)
    usual = {
        "perf/cpu_memory_used_gb": 400.0,
        "timing_per_token_ms/gen": 0.8,
        "rollout_corr/k3_kl": 0.004,
        "response_length/clip_ratio": 0.1,
        "critic/rewards/mean": 0.3,
        "critic/rewards/max": 1.0,
        "actor/entropy": 0.5,
        "timing_s/step": 30.0,
    }
    by = {name.replace("__", "/"): factor for name, factor in grows.items()}
    return {
        step: {
            name: value * (1 + (by.get(name, 1) - 1) * (step - 1) / (LONG - 1)) * noise.uniform(0.998, 1.002)
            for name, value in usual.items()
        }
        for step in range(1, LONG + 1)
    }


GROWS = {
    Kind.HOST_MEMORY: ("perf/cpu_memory_used_gb", 1.5, "grew from 4"),
    Kind.ROLLOUT: ("timing_per_token_ms/gen", 2.5, "2.2 times the"),
    Kind.MISMATCH: ("rollout_corr/k3_kl", 10.0, "rose from 0.00"),
    Kind.CUT_ANSWERS: ("response_length/clip_ratio", 6.0, "of the answers are cut"),
}


@pytest.mark.parametrize("kind", GROWS, ids=[kind.name for kind in GROWS])
def test_what_grows_is_told_alone(kind: Kind) -> None:
    name, factor, text = GROWS[kind]
    (found,) = oddities(log_of(drifting(**{name: factor})))
    assert found.kind is kind
    assert text in found.text


@pytest.mark.parametrize("seed", range(20))
def test_noise_that_does_not_grow_is_calm(seed: int) -> None:
    assert oddities(log_of(drifting(seed))) == []


def test_a_hosts_memory_that_jumps_once_is_no_leak() -> None:
    steps = drifting()
    for step in range(20, LONG + 1):
        steps[step]["perf/cpu_memory_used_gb"] += 200
    assert oddities(log_of(steps)) == []


def test_longer_answers_alone_make_no_slower_rollout() -> None:
    steps = drifting()
    for step in steps:
        steps[step] |= {"timing_s/gen": 5.0 * step, "response_length/mean": 100.0 * step}
    assert oddities(log_of(steps)) == []


def test_answers_that_are_cut_ever_less_are_learning() -> None:
    assert oddities(log_of(drifting(**{"response_length/clip_ratio": 0.3}))) == []


def test_an_entropy_that_fell_because_the_task_is_learned_is_calm() -> None:
    steps = drifting(**{"actor/entropy": 0.02})
    assert [odd.kind for odd in oddities(log_of(steps))] == [Kind.ENTROPY]
    for step in range(30, LONG + 1):
        steps[step]["critic/rewards/mean"] = 0.92
    assert oddities(log_of(steps)) == []


def test_each_step_is_split_into_phases_a_few_times_however_many_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    split = watch.split
    monkeypatch.setattr(watch, "split", lambda metrics: (calls.append(1), split(metrics))[1])
    steps = {step: {"timing_s/step": 10.0 if step % 3 else 30.0, "timing_s/gen": 5.0} for step in range(1, 601)}
    assembly = Assembly()
    for step, metrics in steps.items():
        assembly.add(StepLine(step, metrics))
    found = watch.oddities(assembly.log("a log"))
    assert sum(odd.kind is watch.Kind.SLOW for odd in found) == 200
    assert len(calls) <= 2 * len(steps)


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 9.0, 5.0]])
def test_the_median_of_all_but_one_value(values: list[float]) -> None:
    for place, value in enumerate(values):
        others = values[:place] + values[place + 1 :]
        assert watch._median_without(sorted(values), value) == median(others)
