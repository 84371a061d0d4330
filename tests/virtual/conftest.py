"""The device is loaded once into the test process: torch takes a private device's name once and for all. Tests that
need another environment, or several ranks, start processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from types import ModuleType

import pytest

from .processes import DEVICES, Run, environment


@pytest.fixture(scope="session")
def npu() -> ModuleType:
    """torch, with two virtual NPUs in this process."""
    before = dict(os.environ)
    os.environ["VERL_NPU_VIRTUAL"] = str(DEVICES)
    os.environ.pop("ASCEND_RT_VISIBLE_DEVICES", None)
    import torch

    from verl_npu import virtual

    virtual.load()
    torch.npu.init()  # from here on the visible NPUs are fixed, whatever a test does to the environment
    # The tests of everything else run later in this process, and start processes that must not inherit this.
    os.environ.clear()
    os.environ.update(before)
    return torch


@pytest.fixture(scope="session")
def python() -> Run:
    """Run a program with two virtual NPUs in a process of its own."""

    def run(code: str, timeout: float = 120, **changes: str | None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=environment(**changes),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
