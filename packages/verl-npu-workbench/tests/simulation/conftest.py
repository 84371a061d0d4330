"""Loads the device once into the test process: torch takes a private device's name once and for all."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
from virtual_ascend.testing.fixtures import npu as npu
from virtual_ascend.testing.fixtures import python as python
from virtual_ascend.testing.fixtures import torch_npu as torch_npu

from .released import repository


@pytest.fixture(scope="module")
def history() -> Path:
    """Return the repository of vllm-ascend."""
    return repository()


@pytest.fixture
def ascend(request: pytest.FixtureRequest) -> ModuleType:
    request.getfixturevalue("npu")
    return importlib.import_module("torch_npu")
