"""How the tests with the real vllm-ascend start its processes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ..virtual import processes

__all__ = ["answer", "answers", "environment", "python"]


def python() -> str:
    """Return the Python that VERL_NPU_VLLM_ASCEND names; skip without it."""
    named = os.environ.get("VERL_NPU_VLLM_ASCEND")
    if not named:
        pytest.skip("set VERL_NPU_VLLM_ASCEND to the Python of an environment with vllm-ascend")
    return named


def environment() -> dict[str, str]:
    """Return the variables of a process that serves on two virtual NPUs."""
    return processes.environment(
        VERL_NPU_VIRTUAL="2",
        VERL_NPU_VIRTUAL_MEMORY="2",
        VLLM_VERSION="0.11.0",
        VLLM_ASCEND_ENABLE_NZ="0",
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
    )


def answers(program: Path, *words: str, folder: Path, timeout: float = 600, **variables: str) -> list[Any]:
    """Run a program to its end, and return all that it says."""
    done = subprocess.run(
        [python(), str(program), *words],
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    return [json.loads(line.removeprefix("ANSWER ")) for line in lines]


def answer(program: Path, *words: str, folder: Path, **variables: str) -> dict[str, Any]:
    """Run a program to its end, and return the one thing that it says."""
    (said,) = answers(program, *words, folder=folder, **variables)
    found: dict[str, Any] = said
    return found
