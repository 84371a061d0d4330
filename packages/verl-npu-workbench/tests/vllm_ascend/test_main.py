"""vllm-ascend's own tests fail only where it is known, and bad input is one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKBENCH = Path(__file__).resolve().parents[2]
V11 = "vllm-ascend-v0.11.0"


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.vllm_ascend", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=WORKBENCH,
        timeout=1800,
    )


def test_a_folder_without_the_tests_is_an_error_of_one_line(tmp_path: Path) -> None:
    done = command("--tree", str(tmp_path), "--python", sys.executable)
    assert done.returncode == 2
    assert f"expected a checkout of github.com/vllm-project/vllm-ascend with tests/ut; found {tmp_path}" in done.stderr


@pytest.mark.e2e
def test_vllm_ascends_own_tests_fail_only_where_it_is_known() -> None:
    python, upstreams = os.environ.get("VERL_NPU_VLLM_ASCEND"), os.environ.get("VERL_NPU_UPSTREAMS")
    packages = os.environ.get("VERL_NPU_VLLM_ASCEND_TESTS")
    if not (python and upstreams and packages):
        pytest.skip(
            "set VERL_NPU_VLLM_ASCEND to a Python with vllm-ascend, VERL_NPU_UPSTREAMS to the folder of its checkout, "
            "and VERL_NPU_VLLM_ASCEND_TESTS to the folder of what `python -m tests.vllm_ascend --help` names"
        )
    done = command("--tree", str(Path(upstreams) / V11), "--python", python, "--packages", packages)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
