"""`verl-npu lint --start` finds each mistake in a good script with upstream's words, and none in the good one.

Nightly: each start takes half a minute of a processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.upstream, pytest.mark.virtual]

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{section}" for section in ("actor", "rollout", "model"))
GOOD: Mapping[str, object] = {
    "algorithm.adv_estimator": "grpo",
    "data.train_files": "/data/train.parquet",
    "data.val_files": "/data/test.parquet",
    "data.train_batch_size": 64,
    "data.max_prompt_length": 512,
    "data.max_response_length": 1024,
    f"{MODEL}.path": "Qwen/Qwen3-8B",
    f"{MODEL}.use_remove_padding": True,
    f"{ACTOR}.ppo_mini_batch_size": 32,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,
    f"{ACTOR}.use_kl_loss": True,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.n": 5,
    f"{ROLLOUT}.tensor_model_parallel_size": 2,
    f"{ROLLOUT}.gpu_memory_utilization": 0.6,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 8,
    "trainer.logger": "console",
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
}
MISTAKES: Mapping[str, tuple[Mapping[str, object], str]] = {
    "an estimator misspelt": ({"algorithm.adv_estimator": "gpro"}, "gpro"),
    "an engine misspelt": ({f"{ROLLOUT}.name": "vlm"}, "Rollout vlm with mode"),
    "a penalty misspelt": ({f"{ACTOR}.kl_loss_type": "low_var"}, "NotImplementedError"),
    "a data type misspelt": ({f"{ACTOR}.fsdp_config.model_dtype": "float17"}, "unexpected precision: float17"),
    "a micro batch that divides nothing": ({f"{ACTOR}.ppo_micro_batch_size_per_gpu": 3}, "divisible by"),
    "a mini batch of fewer samples than ranks": ({f"{ACTOR}.ppo_mini_batch_size": 3, f"{ROLLOUT}.n": 1}, "mini_batch"),
    "experts over 3": ({f"{ROLLOUT}.expert_parallel_size": 3}, "expert_parallel_size must be equal"),
    "no NPUs": ({"trainer.n_gpus_per_node": 0}, "ZeroDivisionError"),
    "no engine": ({f"{ROLLOUT}.name": "???"}, "rollout.name"),
    "flash attention 3": ({f"+{MODEL}.override_config.attn_implementation": "flash_attention_3"}, "FlashAttention3"),
    "a strategy misspelt": ({f"{ACTOR}.strategy": "fsdp3"}, "NotImplementedError"),
}
ENGINE_MISTAKES: Mapping[str, tuple[Mapping[str, object], str]] = {
    "a rollout's data type misspelt": ({f"{ROLLOUT}.dtype": "bf"}, "argument --dtype: invalid choice: 'bf'"),
    "a way to load misspelt": ({f"{ROLLOUT}.load_format": "auto2"}, "Load format `auto2` is not supported"),
    "a share of the memory in percent": ({f"{ROLLOUT}.gpu_memory_utilization": 60}, "gpu_memory_utilization"),
    "a batch below the longest sequence": (
        {
            f"{ROLLOUT}.max_num_batched_tokens": 512,
            f"{ROLLOUT}.max_model_len": 1536,
            f"{ROLLOUT}.enable_chunked_prefill": False,
        },
        "max_num_batched_tokens",
    ),
}
Start = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Return a function that starts the good script with other settings, and returns the findings."""

    def run(settings: Mapping[str, object], python: str = sys.executable) -> list[dict[str, Any]]:
        words = [f"{key}={value}" for key, value in {**GOOD, **settings}.items()]
        script = tmp_path / "run.sh"
        script.write_text(" ".join(["python3 -m verl.trainer.main_ppo", *(f"'{word}'" for word in words)]) + "\n")
        done = subprocess.run(
            [python, "-m", "verl_npu", "lint", "--start", "--json", str(script)],
            env={name: value for name, value in os.environ.items() if not name.startswith("VIRTUAL_ASCEND")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr[-2000:]
        judged = json.loads(done.stdout)
        assert judged["not_judged"] == ""
        return [each for each in judged["findings"] if each["rule"] == "start"]

    return run


def test_a_good_script_comes_to_its_first_micro_batch(pin: str, start: Start) -> None:
    assert [each for each in start({}) if each["refused"]] == []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_upstream_refuses_a_mistake_in_its_own_words(mistake: str, pin: str, start: Start) -> None:
    settings, said = MISTAKES[mistake]
    (finding,) = [each for each in start(settings) if each["refused"]]
    assert said in f"{finding['found']} {finding['why']}"


@pytest.mark.parametrize("mistake", ENGINE_MISTAKES)
def test_the_engine_refuses_its_arguments(mistake: str, python: str, start: Start) -> None:
    settings, said = ENGINE_MISTAKES[mistake]
    (finding,) = [each for each in start(settings, python) if each["refused"]]
    assert said in f"{finding['found']} {finding['why']}"


def test_the_engine_takes_the_arguments_of_a_good_script(python: str, start: Start) -> None:
    assert start({}, python) == []
