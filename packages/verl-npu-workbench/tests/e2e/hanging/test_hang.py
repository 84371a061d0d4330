"""`verl-npu doctor --hang` on jobs that really hang on virtual NPUs, and on healthy ones that are slow."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from verl_npu_workbench.hanging.stacks import program
from verl_npu_workbench.processes import descendants
from virtual_ascend.testing import free_port

HERE = Path(__file__).parent
PROJECT = HERE.parents[4]
WITHIN = 120.0
"""The seconds that a job may take to start on a busy machine."""


@dataclass
class Started:
    """A job, and its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def says(self, pattern: str, times: int = 1) -> re.Match[str]:
        """Wait until the job has printed a pattern so often."""
        until = time.monotonic() + WITHIN
        while time.monotonic() < until:
            found = [*re.finditer(pattern, self.log.read_text())]
            if len(found) >= times:
                return found[-1]
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            time.sleep(0.2)
        raise AssertionError(self.log.read_text()[-2000:])

    def asked(self) -> tuple[int, dict[str, Any]]:
        """Return the status and the answer of `doctor --hang` for the job."""
        command = [sys.executable, "-m", "verl_npu", "doctor", "--hang", str(self.process.pid), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
        return done.returncode, json.loads(done.stdout or done.stderr)

    def rank(self, number: int) -> int:
        """Return the process id of a rank."""
        for pid in descendants(self.process.pid):
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            if f"\0RANK={number}\0".encode() in b"\0" + environ:
                return pid
        raise AssertionError(f"no rank {number}")


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a job; end all its descendants afterwards."""
    if not program():
        pytest.skip("py-spy is not installed")
    pytest.importorskip("torch")
    begun: list[Started] = []

    def begin(command: Sequence[str], **variables: str) -> Started:
        log = tmp_path / "log"
        environment = {
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "RAY_prestart_worker_first_driver": "0",
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=output, stderr=output)
        begun.append(Started(process, log))
        return begun[-1]

    yield begin
    for each in begun:
        below = descendants(each.process.pid)
        each.process.kill()
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        each.process.wait()


def torchrun(how: str) -> list[str]:
    port = f"--master_port={free_port()}"
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", port, str(HERE / "ranks.py"), how]


def ray(how: str, *more: str) -> list[str]:
    pytest.importorskip("ray")
    return [sys.executable, str(HERE / "actors.py"), how, *more]


def test_ranks_in_different_collectives(start: Start) -> None:
    job = start(torchrun("branch"), VIRTUAL_ASCEND="2")
    job.says("made step 1", times=2)
    time.sleep(2)
    status, said = job.asked()
    assert (status, said["verdict"]) == (1, "hangs")
    assert "validate (hanging/ranks.py" in said["why"]
    assert "total (hanging/ranks.py" in said["why"]
    assert job.process.poll() is None, "the job was ended"


@pytest.mark.nightly("verl_npu_workbench/hanging")
def test_a_slow_rank_is_no_hang(start: Start) -> None:
    job = start(torchrun("slow"), VIRTUAL_ASCEND="2")
    job.says("rank 0 made step 0")
    status, said = job.asked()
    assert (status, said["verdict"]) == (0, "works")
    assert said["odd"][0]["rank"] == 1


@pytest.mark.nightly("verl_npu_workbench/hanging")
def test_a_rank_that_naps_stands_still_at_most(start: Start) -> None:
    job = start(torchrun("naps"), VIRTUAL_ASCEND="2")
    job.says("rank 0 made step 0")
    _, said = job.asked()
    assert said["verdict"] in ("stands still", "works")


@pytest.mark.nightly("verl_npu_workbench/hanging")
def test_a_rank_that_was_stopped(start: Start) -> None:
    job = start(torchrun("stopped"), VIRTUAL_ASCEND="2")
    job.says("rank 1 made step 2")
    stopped = job.rank(1)
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(1)
    status, said = job.asked()
    assert (status, said["verdict"]) == (1, "hangs")
    assert [(each["rank"], each["pid"]) for each in said["odd"]] == [(1, stopped)]
    assert f"kill -CONT {stopped}" in said["to_do"]
    os.kill(stopped, signal.SIGCONT)
    job.says("rank 0 made step 5")


@pytest.mark.nightly("verl_npu_workbench/hanging")
def test_a_data_loader_that_sleeps(start: Start) -> None:
    job = start(torchrun("data"), VIRTUAL_ASCEND="2")
    job.says("rank 1 made step 1")
    time.sleep(3)
    status, said = job.asked()
    assert (status, said["verdict"]) == (1, "stands still")
    assert [each["kind"] for each in said["odd"]] == ["waits for another process", "sleeps"]
    assert said["odd"][0]["rank"] == 1
    assert "Rows.__getitem__ (hanging/ranks.py" in said["why"]


@pytest.mark.nightly("verl_npu_workbench/hanging")
def test_an_actor_that_waits_for_a_task_of_its_own(start: Start) -> None:
    job = start(ray("circle"), VIRTUAL_ASCEND="0")
    job.says("ready")
    time.sleep(8)
    status, said = job.asked()
    assert (status, said["verdict"]) == (1, "hangs")
    assert {each["title"] for each in said["odd"]} == {"ray::Engine.generate", "ray::Trainer.fit"}


@pytest.mark.nightly("verl_npu_workbench/hanging")
def test_an_engine_that_waits_for_a_lock(start: Start) -> None:
    job = start(ray("lock"), VIRTUAL_ASCEND="0")
    pid = int(job.says(r"ready (\d+)")[1])
    time.sleep(2)
    status, said = job.asked()
    assert (status, said["verdict"]) == (1, "hangs")
    assert [(each["pid"], each["kind"]) for each in said["odd"]] == [(pid, "waits for a lock")]


@pytest.mark.nightly("verl_npu_workbench/hanging")
def test_a_rank_that_was_not_called(start: Start) -> None:
    job = start(ray("ranks", str(free_port())), VIRTUAL_ASCEND="2")
    pids = job.says(r"ready (\d+) (\d+)")
    time.sleep(3)
    status, said = job.asked()
    assert (status, said["verdict"]) == (1, "hangs")
    assert [(each["rank"], each["pid"]) for each in said["odd"]] == [(1, int(pids[2]))]


@pytest.mark.nightly("verl_npu_workbench/hanging")
def test_a_driver_that_sleeps_while_its_actors_wait_for_work(start: Start) -> None:
    job = start(ray("nothing"), VIRTUAL_ASCEND="0")
    job.says("ready")
    _, said = job.asked()
    assert said["verdict"] == "stands still"
    assert said["odd"][0]["place"].startswith("main (hanging/actors.py")
