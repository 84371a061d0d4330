"""`verl-npu plan` with the installed verl: a model of full size on eight NPUs, planned by one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.upstream, pytest.mark.virtual]

PROJECT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
JOB = (
    "python3",
    "-m",
    "verl.trainer.main_ppo",
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=64",
    "data.max_prompt_length=512",
    "data.max_response_length=1536",
    "actor_rollout_ref.model.path=/models/Qwen3-0.6B",
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.use_kl_loss=False",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "trainer.device=npu",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=1",
)
Plan = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def plan(pin: str, tmp_path: Path) -> Plan:
    def run(*settings: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("VERL_NPU_VIRTUAL")}
        variables["PYTHONPATH"] = os.pathsep.join([str(PROJECT), variables.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = [sys.executable, "-m", "verl_npu", "plan", "--output", str(tmp_path / "out"), *options, "--"]
        return subprocess.run(
            [*command, *JOB, *settings], env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    return run


def _phases(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {phase["phase"]: phase for phase in json.loads(done.stdout)["phases"]}


def test_a_job_that_fits_has_each_phase_with_who_holds_it(plan: Plan, tmp_path: Path) -> None:
    done = plan(options=("--json", "--no-tries", "--html", "plan.html", "--png", "plan.png"))
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert (found["verdict"], found["simulated"]) == ("fits", True)
    phases = _phases(done)
    assert list(phases) == ["load", "rollout", "log-probabilities", "update actor", "checkpoint", "weight sync"]
    update = phases["update actor"]
    parameters = found["model"]["parameters"]
    # In float32, an eighth of each; the optimizer has two numbers for a weight.
    assert update["holders"]["weights"] == pytest.approx(4 * parameters / 8, rel=0.02)
    assert update["holders"]["gradients"] == pytest.approx(4 * parameters / 8, rel=0.02)
    assert update["holders"]["optimizer's state"] == pytest.approx(8 * parameters / 8, rel=0.02)
    assert sum(update["holders"].values()) == update["tensors"] < update["needed"]
    assert found["ranks"][0]["host"] < 3 * GIB
    assert "<svg" in (tmp_path / "plan.html").read_text()
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly
def test_what_makes_it_fit_was_planned_again(plan: Plan, tmp_path: Path) -> None:
    done = plan(
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16",
        "data.max_response_length=7680",
    )
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.count("does not fit") >= 1
    assert "it fits with: actor_rollout_ref." in done.stdout
    found = json.loads((tmp_path / "out" / "plan.json").read_text())
    settings = [f"{key}={value}" for key, value in found["proposal"].items()]
    again = plan(
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16",
        "data.max_response_length=7680",
        *settings,
        options=("--json", "--no-tries"),
    )
    assert json.loads(again.stdout)["verdict"] == "fits"


def test_an_error_of_verl_is_told_with_its_phase(plan: Plan) -> None:
    done = plan("actor_rollout_ref.actor.policy_loss.loss_mode=no_such_loss", options=("--no-tries",))
    assert done.returncode == 1
    assert "failed" in done.stdout
    assert "rank 0 failed in update actor: ValueError: Unsupported loss mode: no_such_loss" in " ".join(
        done.stdout.split()
    )


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            "actor_rollout_ref.model.path=/models/mine",
            "the model '/models/mine': expected a folder with its config.json",
        ),
        (
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size=3",
            "the parallel sizes: expected a product that divides 8",
        ),
        ("trainer.no_such_key=1", "Could not override 'trainer.no_such_key'"),
    ],
)
def test_wrong_input_is_one_line(plan: Plan, setting: str, said: str) -> None:
    done = plan(setting)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
