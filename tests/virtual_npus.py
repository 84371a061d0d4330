"""Fixtures of tests on virtual NPUs: `from .virtual_npus import npu as npu` in a conftest."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from virtual_ascend.testing import NPUS_OF_A_TEST, run

__all__ = ["Run", "npu", "project_and", "python"]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def npu() -> ModuleType:
    """torch, with two virtual NPUs in this process."""
    before = dict(os.environ)
    os.environ["VIRTUAL_ASCEND"] = str(NPUS_OF_A_TEST)
    os.environ.pop("ASCEND_RT_VISIBLE_DEVICES", None)
    import torch
    import virtual_ascend

    virtual_ascend.load()
    torch.npu.init()  # from here on the visible NPUs are fixed, whatever a test does to the environment
    # The tests of everything else run later in this process, and start processes that must not inherit this.
    os.environ.clear()
    os.environ.update(before)
    return torch


@pytest.fixture(scope="session")
def python() -> Run:
    """Run a program with two virtual NPUs in a process of its own."""
    return run


def project_and(folder: Path) -> str:
    """PYTHONPATH with a folder behind what it has."""
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(folder)])
