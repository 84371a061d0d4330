"""`verl-npu plan` with the installed verl: a model of full size on eight NPUs, planned by one process."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.plan.by_hand import Model
from tests.plan.forty import config

from .conftest import PlanWords

pytestmark = [pytest.mark.e2e, pytest.mark.upstream, pytest.mark.virtual]

GIB = 1 << 30
SMALL = Model("qwen3", hidden=256, intermediate=512, layers=2, heads=4, key_heads=2, vocabulary=32768, head=64)
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
def plan(plan_words: PlanWords) -> Plan:
    def run(*settings: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return plan_words(options, (*JOB, *settings))

    return run


def _phases(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {phase["phase"]: phase for phase in json.loads(done.stdout)["phases"]}


@pytest.mark.nightly("verl_npu_workbench/plan", "packages/virtual-ascend/virtual_ascend")
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
    assert update["tensors"] < sum(update["holders"].values()) == update["needed"]
    assert found["ranks"][0]["host"] < 3 * GIB
    assert "<svg" in (tmp_path / "plan.html").read_text()
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "settings",
    [
        ("strategy=fsdp2", "fsdp_config.offload_policy=True"),
        ("strategy=fsdp2", "fsdp_config.param_offload=True", "fsdp_config.optimizer_offload=True"),
        ("strategy=fsdp", "fsdp_config.param_offload=True", "fsdp_config.optimizer_offload=True"),
    ],
)
def test_what_is_offloaded_is_planned_on_the_host(plan: Plan, settings: tuple[str, ...]) -> None:
    actor = tuple(f"actor_rollout_ref.actor.{each}" for each in settings)
    done = plan(*actor, options=("--json", "--no-tries", "--host-memory", "1", "--memory", "8"))
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["verdict"] == "fits", "only the host is too small"
    # Weights and two numbers of the optimizer for each, in float32, on eight ranks of one machine. The shards of FSDP2
    # are single parameters, of which those below 1 MiB are not counted; FSDP1 flattens a layer.
    share = found["host"]["checkpoint"] / (12 * found["model"]["parameters"])
    assert 0.98 <= share <= 1.02 if "strategy=fsdp" in settings else 0.85 <= share <= 1.02
    assert found["ranks"][0]["host"] < 2 * GIB


@pytest.mark.nightly
def test_a_budget_of_one_sequence_is_planned_with_the_two_that_many_make_of_it(plan: Plan) -> None:
    # 16 sequences of 1920 tokens make 15 micro batches of 2048, one of which gets two.
    budget = ("actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048")
    found = plan(*budget, options=("--json", "--no-tries"))
    counted = plan(
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        options=("--json", "--no-tries", "--response-length", str(1920 - 512)),
    )
    update, expected = (_phases(done)["update actor"]["tensors"] for done in (found, counted))
    assert update == pytest.approx(expected, rel=0.01)


@pytest.mark.nightly
def test_the_largest_micro_batch_is_planned_and_the_next_one_too(plan: Plan, tmp_path: Path) -> None:
    done = plan(
        "data.max_response_length=3584", options=("--no-tries", "--largest-micro-batch", "--html", "plan.html")
    )
    found = json.loads((tmp_path / "out" / "plan.json").read_text())["largest_micro_batch"]
    assert (found["key"], found["size"], found["exact"]) == (
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        8,
        True,
    )
    assert {probe["size"]: probe["fits"] for probe in found["probes"]} == {4: True, 8: True, 16: False}
    assert "the largest size that fits: 8" in done.stdout
    assert "ppo_micro_batch_size_per_gpu that fits: 8" in (tmp_path / "plan.html").read_text()


@pytest.mark.nightly
def test_measured_lengths_are_packed_by_verl(plan: Plan, tmp_path: Path) -> None:
    rows = [(512, 1536), (200, 800)] + 30 * [(100, 300)]
    (tmp_path / "lengths.csv").write_text(
        "prompt,response\n" + "".join(f"{prompt},{response}\n" for prompt, response in rows)
    )
    done = plan(options=("--json", "--no-tries", "--lengths", "lengths.csv"))
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    # Eight sequences of a rank: the two long ones are in the first micro batch of four, with 3848 tokens.
    assert sorted(map(tuple, found["share"]["lengths"]), reverse=True)[:2] == rows[:2]
    assert "of 32 sequences a rank is given those" in found["notes"][0]
    update = _phases(done)["update actor"]
    logits = 3848 * 151936 * 2
    # Four copies of the logits, and the inputs of 28 layers of 1024.
    assert update["holders"]["activations and temporary buffers"] == pytest.approx(
        4 * logits + 3848 * 28 * 1024 * 2, rel=0.05
    )


@pytest.mark.nightly
def test_answers_that_are_spread_are_drawn_around_their_mean(plan: Plan) -> None:
    done = plan(options=("--json", "--no-tries", "--response-length", "600", "--spread", "0.5"))
    assert done.returncode == 0, done.stderr[-2000:]
    share = json.loads(done.stdout)["share"]
    assert share["response"] == pytest.approx(600, rel=0.02)
    answers = [response for _, response in share["lengths"]]
    assert len(set(answers)) > 1
    assert sum(answers) > len(answers) * share["response"]


@pytest.mark.nightly
def test_an_error_of_verl_is_told_with_its_phase(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config(SMALL)))
    job = ("actor_rollout_ref.actor.policy_loss.loss_mode=no_such_loss",)
    done = plan(*job, options=("--no-tries", "--model-config", "config.json"))
    assert done.returncode == 1
    assert "failed" in done.stdout
    assert "rank 0 failed in update actor: ValueError: Unsupported loss mode: no_such_loss" in " ".join(
        done.stdout.split()
    )


def test_a_script_of_megatron_says_what_to_install_before_its_ranks_fail(plan: Plan) -> None:
    if importlib.util.find_spec("megatron"):
        pytest.skip("megatron-core is installed here")
    done = plan("actor_rollout_ref.actor.strategy=megatron")
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected the package megatron-core in this environment" in " ".join(done.stderr.split())
    assert "scripts/plan.sh, which creates an environment" in " ".join(done.stderr.split())
