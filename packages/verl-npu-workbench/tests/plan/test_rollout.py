"""The rollout engine's memory by its own rule."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from verl_npu_workbench.plan.hardware import GIB, HARDWARE
from verl_npu_workbench.plan.model import Model
from verl_npu_workbench.plan.rollout import other_engines, rollout_of, runs_inside
from verl_npu_workbench.plan.share import share_of

from verl_npu.errors import PlanError
from verl_npu.registry.source.tree import SourceTree

from .conftest import ALONE, MODEL, SEPARATE

ROLLOUT = "actor_rollout_ref.rollout."


def _rollout(settings, model=MODEL, **others):
    chosen = settings(**{f"{ROLLOUT}{key}": value for key, value in others.items()})
    return rollout_of(chosen, model, share_of(chosen), HARDWARE["a2"])


def test_the_engine_takes_its_share_and_the_cache_has_what_is_left(settings) -> None:
    found = _rollout(settings)
    assert found.taken == int(0.6 * HARDWARE["a2"].memory.value)
    assert found.engine_weights == 8_000_000_000
    assert found.token == MODEL.cache // 2
    assert found.sequences == (found.taken - found.engine_weights - 2 * GIB) // (found.token * 4096)


def test_heads_that_are_fewer_than_the_ranks_are_on_each(settings) -> None:
    few = dataclasses.replace(MODEL, key_heads=2)
    assert _rollout(settings, few, tensor_model_parallel_size=8).token == MODEL.cache // 2


@pytest.mark.parametrize(
    ("given", "exports"),
    [
        ({"data_parallel_size": 4, "expert_parallel_size": 8}, {}),
        ({"dp_model_parallel_size": 4, "enable_expert_parallel": True}, {}),
        ({"data_parallel_size": 4}, {}),
        ({}, {"VLLM_DP_SIZE": "4"}),
        ({"data_parallel_size": 4}, {"VLLM_DP_SIZE": "four"}),
    ],
)
def test_experts_are_divided_among_a_replica(settings, given: dict[str, object], exports: dict[str, str]) -> None:
    experts = dataclasses.replace(MODEL, experts=6_000_000_000)
    asked = {"tensor_model_parallel_size": 2, **given}
    chosen = settings(**{f"{ROLLOUT}{key}": value for key, value in asked.items()})
    found = rollout_of(chosen, experts, share_of(chosen), HARDWARE["a2"], exports)
    assert found.engine_weights == 2 * (2_000_000_000 // 2 + 6_000_000_000 // 8)


@pytest.mark.parametrize("given", [{"name": "vllm", "data_parallel_size": 2}, {"name": "sglang"}])
def test_a_variable_counts_only_for_a_vllm_without_the_setting(settings, given: dict[str, object]) -> None:
    experts = dataclasses.replace(MODEL, experts=6_000_000_000)
    chosen = settings(
        **{f"{ROLLOUT}{key}": value for key, value in {"tensor_model_parallel_size": 2, **given}.items()}
    )
    share = share_of(chosen)
    weights = [
        rollout_of(chosen, experts, share, HARDWARE["a2"], exports).engine_weights
        for exports in ({}, {"VLLM_DP_SIZE": "8"})
    ]
    assert weights[0] == weights[1]


def test_an_engine_with_npus_of_its_own_takes_nothing_of_the_trainers(settings) -> None:
    chosen = settings(**{"rollout.n_gpus_per_node": 4, "rollout.nnodes": 2})
    found = rollout_of(chosen, MODEL, share_of(chosen), HARDWARE["a2"])
    assert (found.own_npus, found.weights, found.npus) == (True, 0, 8)


def test_v1s_servers_have_npus_of_their_own_and_the_trainers_serve_too_if_they_may(settings) -> None:
    found = rollout_of(settings(**SEPARATE), MODEL, share_of(settings()), HARDWARE["a2"])
    assert (found.servers, found.npus, found.own_npus, found.weights) == (8, 8, False, found.engine_weights)
    assert (found.buckets, found.buckets_of_server, found.sleeps) == (4 * GIB, 6 * GIB, True)
    alone = rollout_of(settings(**ALONE), MODEL, share_of(settings()), HARDWARE["a2"])
    assert (alone.servers, alone.own_npus, alone.weights, alone.buckets) == (8, True, 0, 4 * GIB)


@pytest.mark.parametrize("changes", [{"trainer.use_v1": False}, {"trainer.v1.trainer_mode": "colocate_async"}])
def test_other_trainers_have_no_servers(settings, changes: dict[str, object]) -> None:
    found = rollout_of(settings(**(SEPARATE | changes)), MODEL, share_of(settings()), HARDWARE["a2"])
    assert (found.servers, found.own_npus, found.bucket) == (0, False, 0)


def test_weights_that_are_not_sent_by_a_checkpoint_engine_need_no_buckets(settings) -> None:
    chosen = settings(**{"rollout.n_gpus_per_node": 4, f"{ROLLOUT}checkpoint_engine.backend": "naive"})
    assert rollout_of(chosen, MODEL, share_of(chosen), HARDWARE["a2"]).buckets == 0


TEACHERS = {
    "distillation.enabled": True,
    "distillation.teacher_models.teacher_model.model_path": None,
    "distillation.teacher_models.math.model_path": "Qwen/Qwen3-8B",
    "distillation.teacher_models.math.inference.gpu_memory_utilization": 0.4,
    "distillation.teacher_models.math.inference.tensor_model_parallel_size": 1,
}
REWARD = {
    "reward.reward_model.enable": True,
    "reward.reward_model.model_path": "Qwen/Qwen3-8B",
    "reward.reward_model.rollout.gpu_memory_utilization": 0.5,
    "reward.reward_model.rollout.tensor_model_parallel_size": 2,
}


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({}, []),
        (TEACHERS, ["Qwen/Qwen3-8B: its engine takes 24.4 GiB of each of its NPUs, 14.9 GiB for its weights"]),
        (TEACHERS | {"distillation.enabled": False}, []),
        (REWARD, ["Qwen/Qwen3-8B: its engine takes 30.5 GiB of each of its NPUs, 7.5 GiB for its weights"]),
        (
            REWARD | {"reward.reward_model.rollout.gpu_memory_utilization": 0.1},
            ["Qwen/Qwen3-8B: does not fit; its engine may take 6.1 GiB, and its weights need 7.5 GiB"],
        ),
    ],
)
def test_engines_of_reward_models_and_teachers_are_noted(settings, others: dict[str, object], said: list[str]) -> None:
    assert list(other_engines(settings(**others), HARDWARE["a2"], lambda path: MODEL)) == said


def test_a_reward_model_of_unknown_size_is_noted(settings) -> None:
    def unknown(path: str) -> Model:
        raise PlanError(subject=path, expected="a size", found="none", fix="")

    (said,) = other_engines(settings(**REWARD), HARDWARE["a2"], unknown)
    assert said == "Qwen/Qwen3-8B: the model's size is unknown, so its engine is not planned"


@pytest.mark.parametrize(
    ("engine", "module", "name", "inside"),
    [
        ("vllm", "vllm_rollout_spmd", "vLLMAsyncRollout", True),
        ("vllm", "vllm_rollout", "vLLMAsyncRollout", True),
        ("vllm", "vllm_rollout", "ServerAdapter", False),
        ("sglang", "vllm_rollout", "vLLMAsyncRollout", False),
    ],
)
def test_only_early_vllm_engines_run_in_the_trainers_process(
    tmp_path: Path, settings, engine: str, module: str, name: str, inside: bool
) -> None:
    file = tmp_path / "verl/workers/rollout/vllm_rollout" / f"{module}.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"class {name}:\n    pass\n")
    chosen = settings(**{f"{ROLLOUT}name": engine})
    assert runs_inside(chosen, SourceTree.at(tmp_path, ("verl",))) is inside
