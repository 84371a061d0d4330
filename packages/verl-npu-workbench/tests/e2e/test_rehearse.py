"""A launch script for 16 NPUs, rehearsed on two virtual ones with the installed verl."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from verl_npu_workbench.sandbox import sandbox_program

from verl_npu.errors import SandboxError

pytestmark = [pytest.mark.e2e, pytest.mark.upstream, pytest.mark.virtual]

PROJECT = Path(__file__).resolve().parents[4]
Rehearse = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def rehearse(pin: str, tmp_path: Path) -> Rehearse:
    """Return a function that rehearses the script with these arguments."""
    try:
        sandbox_program()
    except SandboxError as error:
        pytest.skip(str(error))
    script = Path(shutil.copy(Path(__file__).with_name("grpo.sh"), tmp_path))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ASCEND"}
        variables["PYTHONPATH"] = os.pathsep.join([str(PROJECT), variables.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = [sys.executable, "-m", "verl_npu", "rehearse", "--json", "--timeout", "400"]
        command += ["--output", str(tmp_path / "out"), str(script), "--", *arguments]
        return subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


@pytest.mark.nightly(
    "verl_npu_workbench/rehearse",
    "verl_npu_workbench/jobs",
    "verl_npu_workbench/sandbox",
)
def test_it_trains_two_steps(rehearse: Rehearse, tmp_path: Path) -> None:
    done = rehearse()
    assert done.stdout, done.stderr
    result = json.loads(done.stdout)
    assert (done.returncode, result["verdict"], result["steps"], result["npus"]) == (0, "trained", 2, 2), result[
        "failure"
    ]
    assert result["simulated"]
    assert (result["engine"], len(result["curves"]["critic/rewards/mean"])) == ("virtual", 2)
    assert result["versions"]["torch"]
    assert result["layout"]["rollout_tensor"] == 2
    assert result["features"]["device"] == ["applied"]
    assert result["exports"]["VLLM_USE_V1"] == "1"
    assert result["exports_left_out"] == ["HCCL_CONNECT_TIMEOUT"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grpo.sh", "out"]


def test_a_key_that_verl_does_not_know_is_one_line_before_anything_starts(rehearse: Rehearse) -> None:
    done = rehearse("trainer.no_such_key=1")
    assert (done.returncode, done.stdout) == (2, "")
    # On a slow machine there are also progress lines.
    (line,) = (line for line in done.stderr.splitlines() if not re.search(r", \d+ s$", line))
    assert line.startswith("verl-npu: the overrides of verl.trainer.main_ppo: ")
    assert "no_such_key" in line
