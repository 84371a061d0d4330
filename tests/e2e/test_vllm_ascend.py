"""The real vllm-ascend on virtual NPUs. It runs where VERL_NPU_VLLM_ASCEND names the Python of an environment that has
it, as `scripts/quickstart.sh --pin ccd7d934 --rollout vllm-ascend` makes one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ..virtual.processes import environment

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).with_name("vllm_ascend_tokens.py")


@pytest.fixture(scope="module")
def python() -> str:
    named = os.environ.get("VERL_NPU_VLLM_ASCEND")
    if not named:
        pytest.skip("set VERL_NPU_VLLM_ASCEND to the Python of an environment with vllm-ascend")
    return named


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "qwen3_moe", "deepseek_v3"])
def test_its_tokens_are_those_of_transformers_before_and_after_it_slept(
    python: str, kind: str, parallel: int, tmp_path: Path
) -> None:
    variables = {
        "VERL_NPU_VIRTUAL": "2",
        "VERL_NPU_VIRTUAL_MEMORY": "2",
        "VLLM_VERSION": "0.11.0",
        "VLLM_ASCEND_ENABLE_NZ": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [python, str(PROGRAM), kind, str(parallel), str(tmp_path / "model")],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    said = json.loads(line.removeprefix("ANSWER "))
    assert said["awake"] == said["expected"]
    assert said["after sleep"] == said["expected"]
