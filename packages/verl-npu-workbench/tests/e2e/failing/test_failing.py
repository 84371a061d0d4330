"""Jobs that really fail on virtual NPUs: `doctor --log` names the cause, and the process in which it began."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from .jobs import JOBS, Job, Program
from .running import run

DAILY = "nccl"


def _param(job: Job) -> object:
    paths = (
        "verl_npu_workbench/diagnosis",
        "tests/e2e/failing",
    )
    return pytest.param(job, id=job.name, marks=() if job.name == DAILY else pytest.mark.nightly(*paths))


@pytest.mark.e2e
@pytest.mark.parametrize("job", [_param(job) for job in JOBS])
def test_the_cause_and_the_process_are_named(
    job: Job, tmp_path: Path, request: pytest.FixtureRequest, heeds_ctrl_c: None
) -> None:
    pytest.importorskip("torch")
    if job.program is not Program.TORCH and importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    if job.program in (Program.GRPO, Program.SFT):
        request.getfixturevalue("pin")
    if job.small and not _can_mount():
        pytest.skip("this system allows no namespace of mounts")
    found = run(job, tmp_path)
    root = found.said.root
    assert found.cause, f"{found.said.verdict.value}: {root and (root.name or root.event.error)}"
    assert found.process, f"{root and root.event.process}: {found.watched.ranks}, {found.watched.task_runners}"


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_there_are_forty_and_each_has_its_own_name() -> None:
    assert len({job.name for job in JOBS}) == len(JOBS) == 40
