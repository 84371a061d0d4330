"""Fixtures for pytest: `from virtual_ascend.testing.fixtures import npu as npu, python as python` in a conftest."""

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

Run: TypeAlias = "Callable[..., subprocess.CompletedProcess[str]]"


@pytest.fixture(scope="session")
def npu() -> ModuleType:
    """Return the torch module, and load two virtual NPUs in this process."""
    before = dict(os.environ)
    os.environ[NPUS.name] = str(NPUS_OF_A_TEST)
    os.environ.pop(VISIBLE_DEVICES, None)
    import torch

    load()
    torch.npu.init()  # from here on the visible NPUs are fixed, even if a test changes the environment
    # Other tests run later in this process, and the processes that they start must not inherit these variables.
    os.environ.clear()
    os.environ.update(before)
    found: ModuleType = torch
    return found


@pytest.fixture(scope="session")
def python() -> Run:
    """Return a function that runs a program in a separate process with two virtual NPUs."""
    return run


@pytest.fixture(scope="session")
def torch_npu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the real torch_npu (up to 44 MB) for the installed torch version. Skip the test if there is
    no such torch_npu."""
    folder = tmp_path_factory.mktemp("torch_npu")
    try:
        install_torch_npu(folder)
    except NoWheelError as error:
        pytest.skip(str(error))
    return folder
