"""Fixtures of pytest: `from virtual_ascend.testing.fixtures import npu as npu, python as python` in a conftest."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import pytest

from .. import load
from ..variables import NPUS, VISIBLE_DEVICES
from . import NPUS_OF_A_TEST, NoWheelError, install_torch_npu, run

__all__ = ["Run", "npu", "python", "torch_npu"]

Run: TypeAlias = "Callable[..., subprocess.CompletedProcess[str]]"


@pytest.fixture(scope="session")
def npu() -> ModuleType:
    """torch, with two virtual NPUs in this process."""
    before = dict(os.environ)
    os.environ[NPUS.name] = str(NPUS_OF_A_TEST)
    os.environ.pop(VISIBLE_DEVICES, None)
    import torch

    load()
    torch.npu.init()  # from here on the visible NPUs are fixed, whatever a test does to the environment
    # The tests of everything else run later in this process, and start processes that must not inherit this.
    os.environ.clear()
    os.environ.update(before)
    found: ModuleType = torch
    return found


@pytest.fixture(scope="session")
def python() -> Run:
    """Run a program with two virtual NPUs in a process of its own."""
    return run


@pytest.fixture(scope="session")
def torch_npu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the real torch_npu for the installed torch; up to 44 MB, once in a session. Skips without one."""
    folder = tmp_path_factory.mktemp("torch_npu")
    try:
        install_torch_npu(folder)
    except NoWheelError as error:
        pytest.skip(str(error))
    return folder
