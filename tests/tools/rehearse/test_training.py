"""What a rehearsed training is started with, and what of it is kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from verl_npu.tools.jobs.trainer import Trainer
from verl_npu.tools.rehearse.training import Run, train

PROGRAM = """
import json, os, time
time.sleep(0.2)
print("step:1 - score:0.5")
print(json.dumps(dict(os.environ)))
"""
Started = Callable[..., tuple[Run, dict[str, str]]]


@pytest.fixture
def started(tmp_path: Path) -> Started:
    """Start a trainer that prints its environment, with these exports of its script; with that environment."""
    tree, folder = tmp_path / "tree", tmp_path / "run"
    for made in (tree, folder):
        made.mkdir()
    trainer = Trainer("verl.trainer.main_ppo", (), (), 0, tree, {})

    def start(exports: Mapping[str, str]) -> tuple[Run, dict[str, str]]:
        command = [sys.executable, "-S", "-c", PROGRAM]
        run = train(command, replace(trainer, exports=exports), tree, folder, 3, 60, lambda *_: None)
        (line,) = [line for line in run.logs[0].read_text().splitlines() if line.startswith("{")]
        return run, json.loads(line)

    return start


def test_the_scripts_exports_reach_it_but_those_of_its_cluster(started: Started) -> None:
    run, found = started({"TASK_QUEUE_ENABLE": "2", "HCCL_SOCKET_IFNAME": "bond0"})
    assert found["TASK_QUEUE_ENABLE"] == "2"
    assert "HCCL_SOCKET_IFNAME" not in found
    assert run.left_out == ("HCCL_SOCKET_IFNAME",)


def test_it_has_virtual_npus_for_trainer_and_rollout_and_reports_its_steps(started: Started) -> None:
    run, found = started({})
    assert found["VIRTUAL_ASCEND"] == "3"
    assert (run.ended.status, run.steps) == (0, {1: {"score": 0.5}})


def test_vllm_for_cpus_takes_little_memory_whatever_the_script_says(started: Started) -> None:
    _, found = started({"VLLM_CPU_KVCACHE_SPACE": "40"})
    assert found["VLLM_CPU_KVCACHE_SPACE"] == "1"
