"""`lint` predicts what happens to the job that a launch script starts.

Each script is a right one with one change, or with two. It is started by bash, with a python3 that runs the trainer up
to the workers (`driver`): Hydra composes, verl validates, tokenizer, reward, data and trainer are made for a small
model, Ray starts, and its placement groups are placed on two virtual NPUs. So the property is:

- if `lint` refuses the script, the job ends before that, with an error about the refused setting;
- if it does not, the job comes so far, or ends with an error that `lint` has warned of.

The workers are not started: LATER names the rules whose errors would appear only there. `lint` cannot know how many
machines a cluster has, or which models a hub has; no script here is wrong in that.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from testing.interpreter import import_path

from . import driver

pytestmark = [pytest.mark.upstream, pytest.mark.virtual]

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{section}" for section in ("actor", "rollout", "model"))
REFERENCE_BATCH = "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"
ROLLOUT_BATCH = f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"
ACTOR_BATCH = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
RIGHT: Mapping[str, object] = {
    "algorithm.adv_estimator": "grpo",
    "data.train_files": "$SMALL/train.parquet",
    "data.val_files": "$SMALL/test.parquet",
    "data.train_batch_size": 16,
    "data.max_prompt_length": 64,
    "data.max_response_length": 16,
    "data.filter_overlong_prompts": False,
    f"{MODEL}.path": "$SMALL/model",
    f"{ACTOR}.ppo_mini_batch_size": 16,
    ACTOR_BATCH: 8,
    f"{ACTOR}.use_kl_loss": True,
    REFERENCE_BATCH: 8,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.n": 4,
    f"{ROLLOUT}.tensor_model_parallel_size": 1,
    ROLLOUT_BATCH: 8,
    "trainer.n_gpus_per_node": 2,
    "trainer.nnodes": 1,
    "trainer.logger": "console",
    "trainer.total_training_steps": 1,
    "ray_kwargs.ray_init.num_cpus": 8,
    "+ray_kwargs.ray_init.include_dashboard": False,
}


@dataclass(frozen=True)
class Change:
    """The differences of a script from the right one."""

    settings: Mapping[str, object] = field(default_factory=dict)
    """None leaves a setting out."""
    exports: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    module: str = "verl.trainer.main_ppo"

    def __add__(self, other: Change) -> Change:
        return Change(
            {**self.settings, **other.settings},
            {**self.exports, **other.exports},
            (*self.words, *other.words),
            (*self.lines, *other.lines),
            max(self.module, other.module, key=lambda module: module != Change.module),
        )

    def text(self) -> str:
        settings = {**RIGHT, **self.settings}
        words = [f"{key}={value}" for key, value in settings.items() if value is not None]
        exports = [f"export {name}={value}" for name, value in self.exports.items()]
        command = " \\\n    ".join([f"python3 -m {self.module}", *words, *self.words])
        return "\n".join(["export HCCL_CONNECT_TIMEOUT=1500", *exports, *self.lines, command, ""])


GAE = {"algorithm.adv_estimator": "gae", "critic.model.path": "$SMALL/model"}
CRITIC_BATCH = {"critic.ppo_micro_batch_size_per_gpu": 8}
SEGMENTS = {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}
CHANGES: Mapping[str, Change] = {
    "as it is": Change(),
    "npu by name": Change({"trainer.device": "npu"}),
    "cuda by name": Change({"trainer.device": "cuda"}),
    "gpu": Change({"trainer.device": "gpu"}),
    "cpu": Change({"trainer.device": "cpu"}),
    "an unknown key": Change({"trainer.nosuchkey": 1}),
    "a plus that is missing": Change({f"{ROLLOUT}.nosuch": 1}),
    "a plus too much": Change({"trainer.nnodes": None, "+trainer.nnodes": 1}),
    "two plus": Change({"++data.seed": 3}),
    "a group": Change(words=("rollout@actor_rollout_ref.rollout=rollout",)),
    "a wrong group": Change(words=("actor@actor_rollout_ref.actor=nope",)),
    "a list that does not end": Change(words=("trainer.logger=[console",)),
    "a setting left out that others refer to": Change(words=("~trainer.project_name",)),
    "a value twice": Change(words=("data.train_batch_size=32",)),
    "no such configuration": Change(words=("--config-name=ppo_nope",)),
    "4 of 2 NPUs": Change({"trainer.n_gpus_per_node": 4}),
    "1 of 2 NPUs": Change(exports={"ASCEND_RT_VISIBLE_DEVICES": "0"}),
    "both NPUs": Change(exports={"ASCEND_RT_VISIBLE_DEVICES": "1,0"}),
    "no NPU": Change(exports={"ASCEND_RT_VISIBLE_DEVICES": ""}),
    "an NPU that there is not": Change(exports={"ASCEND_RT_VISIBLE_DEVICES": "0,7"}),
    "an NPU twice": Change(exports={"ASCEND_RT_VISIBLE_DEVICES": "1,1"}),
    "one NPU for one": Change({"trainer.n_gpus_per_node": 1}, {"ASCEND_RT_VISIBLE_DEVICES": "1"}),
    "a virtual NPU": Change(exports={"VIRTUAL_ASCEND": "1"}),
    "four virtual NPUs": Change({"trainer.n_gpus_per_node": 4}, {"VIRTUAL_ASCEND": "4"}),
    "a model to fill in": Change({f"{MODEL}.path": "PATH/TO/model"}),
    "data to fill in": Change({"data.train_files": "path/to/train.parquet"}),
    "a model to fill in, by its whole path": Change({f"{MODEL}.path": "/path/to/model"}),
    "the default model": Change({f"{MODEL}.path": None}),
    "a model that is not here": Change({f"{MODEL}.path": "/nowhere/model"}),
    "data that are not here": Change({"data.train_files": "/nowhere/train.parquet"}),
    "data that are not beside the script": Change({"data.train_files": "nowhere/train.parquet"}),
    "a reward that is not here": Change({"custom_reward_function.path": "/nowhere/reward.py"}),
    "a buffer size that is no number": Change(exports={"HCCL_BUFFSIZE": "abc"}),
    "strict": Change(exports={"VERL_NPU_STRICT": "1"}),
    "wrongly strict": Change(exports={"VERL_NPU_STRICT": "ja"}),
    "a feature misspelt": Change(exports={"VERL_NPU_DISABLE": "atention"}),
    "a feature misspelt, strictly": Change(exports={"VERL_NPU_DISABLE": "atention", "VERL_NPU_STRICT": "1"}),
    "off, and the device named": Change({"trainer.device": "npu"}, {"VERL_NPU": "off"}),
    "a time to place": Change(exports={"VERL_NPU_PLACEMENT_TIMEOUT": "60"}),
    "a time to place that is no number": Change(exports={"VERL_NPU_PLACEMENT_TIMEOUT": "soon"}),
    "an unknown check of weights": Change(exports={"VERL_NPU_WEIGHT_SYNC_CHECK": "foo"}),
    "a token budget that is no switch": Change(exports={"VERL_NPU_TOKEN_BUDGET": "yes"}),
    "weights that are garbled": Change(exports={"VLLM_ASCEND_ENABLE_NZ": "1"}),
    "weights that are plain": Change(exports={"VLLM_ASCEND_ENABLE_NZ": "0"}),
    "flash attention 2": Change({f"+{MODEL}.override_config.attn_implementation": "flash_attention_2"}),
    "flash attention 3": Change({f"+{MODEL}.override_config.attn_implementation": "flash_attention_3"}),
    "a mini batch above the batch": Change({f"{ACTOR}.ppo_mini_batch_size": 32}),
    "a batch that does not divide": Change(
        {"data.train_batch_size": 15, f"{ACTOR}.ppo_mini_batch_size": 15, f"{ROLLOUT}.n": 1}
    ),
    "a dynamic batch": Change({f"{ACTOR}.use_dynamic_bsz": True}),
    "an engine of 2": Change({f"{ROLLOUT}.tensor_model_parallel_size": 2}),
    "an engine of 3": Change({f"{ROLLOUT}.tensor_model_parallel_size": 3}),
    "sequences over 3": Change({f"{ACTOR}.ulysses_sequence_parallel_size": 3}),
    "no number of nodes": Change({"trainer.nnodes": ""}),
    "a variable that is not set": Change({"trainer.n_gpus_per_node": "$NOT_SET"}),
    "a batch in words": Change({"data.train_batch_size": "many"}),
    "answers in words": Change({f"{ROLLOUT}.n": "two"}),
    "no engine": Change({f"{ROLLOUT}.name": None}),
    "no micro-batch of the rollout": Change({ROLLOUT_BATCH: None}),
    "no micro-batch of the actor": Change({ACTOR_BATCH: None}),
    "no micro-batch of the reference": Change({REFERENCE_BATCH: None}),
    "no reference and no micro-batch of it": Change({REFERENCE_BATCH: None, f"{ACTOR}.use_kl_loss": False}),
    "two micro-batches of the rollout": Change({f"{ROLLOUT}.log_prob_micro_batch_size": 8}),
    "two micro-batches of the actor": Change({f"{ACTOR}.ppo_micro_batch_size": 8}),
    "a strategy": Change({f"{ACTOR}.strategy": "fsdp2"}),
    "an unknown estimator": Change({"algorithm.adv_estimator": "gpro"}),
    "an unknown penalty": Change({f"{ACTOR}.kl_loss_type": "low_var"}),
    "an unknown loss": Change({f"{ACTOR}.loss_agg_mode": "foo"}),
    "samples at no temperature": Change({f"{ROLLOUT}.temperature": 0, f"{ROLLOUT}.val_kwargs.do_sample": True}),
    "an adapter": Change({f"{MODEL}.lora_rank": 8}),
    "an adapter that is too large": Change({f"{MODEL}.lora_rank": 1024}),
    "a critic": Change({**GAE, **CRITIC_BATCH}),
    "a critic without a micro-batch": Change(GAE),
    "a critic's mini batch": Change({**GAE, **CRITIC_BATCH, "critic.ppo_mini_batch_size": 32}),
    "segments": Change(exports=SEGMENTS),
    "segments and a cache that is kept": Change({f"{ROLLOUT}.free_cache_engine": False}, SEGMENTS),
    "segments and another engine": Change({f"{ROLLOUT}.name": "hf"}, SEGMENTS),
    "a recipe that this verl lacks": Change(module="recipe.dapo.main_dapo"),
    "too few CPUs": Change({"ray_kwargs.ray_init.num_cpus": 1}),
    "another engine": Change({f"{ROLLOUT}.name": "sglang"}),
    "an engine that answers by itself": Change({f"{ROLLOUT}.mode": "async"}),
    "fused kernels": Change({f"{MODEL}.use_fused_kernels": True}),
    "a variable that is not exported": Change(lines=("HCCL_EXEC_TIMEOUT=3600",)),
    "a queue of 7": Change(exports={"TASK_QUEUE_ENABLE": "7"}),
}
LATER = {"batches", "choices", "parallel-sizes"}
"""Rules whose errors only workers, or a first step, would raise. The engine's size is refused before."""
SAID: Mapping[str, str] = {
    "device-setting": r"JobSettingError|LaunchError: the job cannot be placed",
    "imports": r"(ModuleNotFound|Import)Error",
    "required-variables": "FleetError",
    "visible-devices": "Total available GPUs .* is less than total desired",
    "ray-cpus": "LaunchError: the job cannot be placed",
    "empty": r"TypeError: (unsupported operand|not all arguments converted)|ValidationError",
    "validation": r"Invalid loss_agg_mode|temperature should be|LoRA rank in vLLM"
    r"|must be divisible|must be >=|Please set at least one|You have set both|you must enable `use_remove_padding`",
}
"""The text of the error that each rule predicts; for other rules, the error has the finding's subject or value."""
PAIRS = random.Random(31).sample(list(itertools.combinations(CHANGES, 2)), 40)
CASES = {**CHANGES, **{f"{one}; {other}": CHANGES[one] + CHANGES[other] for one, other in PAIRS}}


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small model, and data for it."""
    from harness import dataset, model

    folder = tmp_path_factory.mktemp("small")
    model.generate(folder / "model", 0)
    dataset.generate(folder, 0, train=64, test=16)
    return folder


@pytest.fixture
def environ(small: Path) -> dict[str, str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("VERL_NPU", "HCCL", "ASCEND"))}
    more = {"VIRTUAL_ASCEND": "2", "SMALL": str(small), "HF_HUB_OFFLINE": "1", "RAY_prestart_worker_first_driver": "0"}
    return {**clean, **more, "PYTHONPATH": import_path()}


@dataclass(frozen=True)
class Job:
    """How a job ended."""

    placed: bool
    output: str

    def says(self, finding: Mapping[str, str]) -> bool:
        """Return whether the job ended with an error about the finding."""
        words = SAID.get(finding["rule"])
        if words is not None:
            return re.search(words, self.output) is not None
        found = re.split(r"[.:] |, which", " ".join(finding["found"].split()))[:2]
        subjects = [subject.partition("=")[0] for subject in finding["subject"].split(", ")]
        return any(words in self.output for words in (*filter(_is_telling, found), *subjects))


def _is_telling(words: str) -> bool:
    return len(words) > 8


@pytest.fixture
def start(tmp_path: Path, environ: dict[str, str]) -> Callable[[Path], Job]:
    """Return a function that starts a script, with that python3."""

    def run(script: Path) -> Job:
        programs = tmp_path / "programs"
        programs.mkdir()
        python = programs / "python3"
        python.write_text(f'#!/bin/bash\nexec {sys.executable} {driver.__file__} "$@"\n')
        python.chmod(0o755)
        path = os.pathsep.join((str(programs), environ["PATH"]))
        done = subprocess.run(
            ["bash", str(script)],
            env={**environ, "PATH": path},
            cwd=script.parent,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=600,
            check=False,
        )
        # The output also repeats the requested settings, which are no errors.
        lines = [
            line for line in done.stderr.splitlines() if not line.startswith("Error executing job with overrides")
        ]
        return Job(driver.PLACED in done.stdout, " ".join(" ".join(lines).split()))

    return run


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            change,
            marks=pytest.mark.nightly("verl_npu_workbench/jobs/"),
            id=name,
        )
        for name, change in CASES.items()
    ],
)
def test_a_job_does_what_lint_says_of_its_script(
    change: Change, start: Callable[[Path], Job], environ: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(change.text())
    checked = subprocess.run(
        [sys.executable, "-m", "verl_npu", "lint", str(script), "--json"],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert_agreement(checked, start(script))


def assert_agreement(checked: subprocess.CompletedProcess[str], job: Job) -> None:
    """Fail unless the job did what `lint` predicted for its script."""
    if checked.returncode == 2:  # not judged, and the job does not start either
        assert not job.placed
        return
    findings = json.loads(checked.stdout)["findings"]
    refused = [finding for finding in findings if finding["refused"]]
    assert checked.returncode == bool(refused)
    if {finding["rule"] for finding in refused} - LATER or not job.placed:
        assert not job.placed
        concerned = refused or findings
        assert any(map(job.says, concerned)), f"{concerned}\n{job.output[-2000:]}"
