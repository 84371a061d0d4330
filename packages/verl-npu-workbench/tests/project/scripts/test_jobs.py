from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import pins, training
from harness.errors import BadInput
from harness.jobs import dapo, grpo, linear_attention, ppo
from harness.jobs.base import Plan
from verl_npu_workbench.simulation.graphs import TRIED


def test_dapo_needs_a_checkout(plan: Plan) -> None:
    with pytest.raises(BadInput, match="--verl PATH"):
        dapo.arguments(plan)


def test_dapo_finds_verls_configuration_from_any_folder(plan: Plan, tmp_path: Path) -> None:
    option, module, *words = dapo.arguments(replace(plan, checkout=tmp_path))
    assert (option, module) == ("-m", "recipe.dapo.main_dapo")
    settings = dict(word.split("=", 1) for word in words)
    assert settings["hydra.searchpath"] == f"[file://{tmp_path}/verl/trainer/config]"
    assert settings["actor_rollout_ref.actor.strategy"] == "fsdp2"


@pytest.mark.parametrize("virtual", [True, False])
@pytest.mark.parametrize("pin", list(pins.PINS.values()), ids=lambda pin: pin.name)
def test_the_device_is_left_to_verl_npu(pin: pins.Pin, virtual: bool, plan: Plan) -> None:
    words = grpo.arguments(replace(plan, pin=pin, virtual=virtual))
    settings = dict(part.split("=", 1) for part in words[2:])
    assert "trainer.device" not in settings
    assert settings["trainer.total_training_steps"] == "3"
    assert settings["actor_rollout_ref.rollout.name"] == (pin.virtual_rollout if virtual else "vllm")
    answers = int(settings["data.train_batch_size"]) * int(settings["actor_rollout_ref.rollout.n"])
    assert answers == grpo.PROMPTS * grpo.ANSWERS


@pytest.mark.parametrize("pin", [pin for pin in pins.PINS.values() if pin.engine], ids=lambda pin: pin.name)
def test_vllm_ascend_captures_graphs_where_they_were_compared_with_eager_mode(pin: pins.Pin, plan: Plan) -> None:
    settings = dict(
        part.split("=", 1) for part in grpo.arguments(replace(plan, pin=pin, virtual=True, rollout="vllm-ascend"))[2:]
    )
    captures = pin.engine is not None and pin.engine.vllm_ascend in TRIED
    assert settings["actor_rollout_ref.rollout.enforce_eager"] == str(not captures)
    assert any("cudagraph_capture_sizes" in value for value in settings.values()) == captures


@pytest.mark.parametrize("job", [grpo, ppo])
@pytest.mark.parametrize("npus", [1, 2, 4, 8])
def test_a_rank_has_whole_micro_batches_over_any_number_of_npus(job: Any, npus: int, plan: Plan) -> None:
    settings = dict(word.split("=", 1) for word in job.arguments(replace(plan, npus=npus, generated=True))[2:])
    share = int(settings["data.train_batch_size"]) * int(settings["actor_rollout_ref.rollout.n"]) // npus
    assert share % int(settings["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"]) == 0


def outcome(log: Path, job: str, steps: int = 2) -> Any:
    return SimpleNamespace(request=SimpleNamespace(job=job, steps=steps), log=log)


def test_a_job_that_was_not_compared_lacks_evidence(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("verl-npu: 5 processes agree on what is patched\n")
    assert training.missing_evidence(outcome(log, "dapo")) == []
    log.write_text("step:1\n")
    (line,) = training.missing_evidence(outcome(log, "dapo"))
    assert "processes agree" in line


def test_each_step_of_a_job_with_a_sync_is_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = "weight sync {} of actor_rollout: rank 1 (rollout x): y, the engine holds them bit for bit\n"
    log.write_text("".join(said.format(number) for number in (1, 2, 2)))
    assert training.missing_evidence(outcome(log, "one_step_off")) == []
    assert len(training.missing_evidence(outcome(log, "one_step_off", steps=3))) == 1


def test_a_feature_that_a_job_uses_may_not_be_pending() -> None:
    assert "linear_attention" in grpo.JOB.pending
    assert "linear_attention" not in linear_attention.KERNELS.pending
