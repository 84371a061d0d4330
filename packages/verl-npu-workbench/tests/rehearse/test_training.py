from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from verl_npu_workbench.jobs.trainer import Trainer
from verl_npu_workbench.rehearse.training import Run, train, written
from verl_npu_workbench.sandbox import sandbox_program

PROGRAM = """
import json, os, time
time.sleep(0.2)
print("step:1 - score:0.5")
print(json.dumps(dict(os.environ)))
"""
Started = Callable[..., tuple[Run, dict[str, str]]]


@pytest.fixture
def started(tmp_path: Path) -> Started:
    """Return a function that starts a trainer with these exports, and returns the run and its environment."""
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


ATTACK = """
import os, time
home, run = {home!r}, {run!r}
os.makedirs(run + "/manifests", exist_ok=True)
for place in (run + "/manifests/a.json", run + "/../result.json", run + "/../ray-logs", run + "/../train.log"):
    try:
        os.symlink(home + "/precious", place)
    except OSError as error:
        print(error)
logs = "/tmp/ray/session_2_x/logs"
os.makedirs(logs)
os.symlink(home + "/precious", logs + "/worker-1.out")
os.mkfifo(logs + "/worker-2.out")
open(logs + "/worker-3.out", "w").write("step:2 - score:0.25\\n")
try:
    os.rename("/tmp", "/tmp2")
except OSError as error:
    print(error)
time.sleep(1)
"""


def test_links_that_it_leaves_lead_nowhere(tmp_path: Path) -> None:
    """Earlier, `result.json` and `ray-logs` as links could overwrite and move files of the host."""
    sandbox_program()
    tree, folder, home = (tmp_path / name for name in ("tree", "out", "home"))
    for made in (tree, folder, home):
        made.mkdir()
    (home / "precious").write_text("content")
    code = ATTACK.format(home=str(home), run=str(written(folder)))
    trainer = Trainer("verl.trainer.main_ppo", (), (), 0, tree, {})
    run = train([sys.executable, "-S", "-c", code], trainer, tree, folder, 2, 60, lambda *_: None)
    assert run.ended.status == 0, run.ended.output
    assert sorted(path.name for path in folder.iterdir()) == ["ray-logs", "run", "train.log"]
    assert [path.name for path in run.logs] == ["train.log", "worker-3.out"]
    assert run.steps == {2: {"score": 0.25}}
    assert not any(path.is_symlink() for path in [*folder.iterdir(), *run.logs])
    assert sorted((path.name, path.read_text()) for path in home.iterdir()) == [("precious", "content")]


def test_it_has_virtual_npus_for_trainer_and_rollout_and_reports_its_steps(started: Started) -> None:
    run, found = started({})
    assert found["VIRTUAL_ASCEND"] == "3"
    assert (run.ended.status, run.steps) == (0, {1: {"score": 0.5}})


def test_vllm_for_cpus_takes_little_memory_whatever_the_script_says(started: Started) -> None:
    _, found = started({"VLLM_CPU_KVCACHE_SPACE": "40"})
    assert found["VLLM_CPU_KVCACHE_SPACE"] == "1"
