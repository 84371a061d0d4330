"""The device is loaded once into the test process: torch takes a private device's name once and for all."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest
from virtual_ascend.testing.fixtures import npu as npu
from virtual_ascend.testing.fixtures import python as python
from virtual_ascend.testing.fixtures import torch_npu as torch_npu


@pytest.fixture(scope="module")
def history() -> Path:
    """The repository of vllm-ascend."""
    folder = Path(os.environ.get("VERL_NPU_UPSTREAMS", "")) / "vllm-ascend.git"
    if not os.environ.get("VERL_NPU_UPSTREAMS") or not folder.is_dir():
        pytest.skip("set VERL_NPU_UPSTREAMS to a folder with vllm-ascend.git")
    return folder


@pytest.fixture
def ascend(request: pytest.FixtureRequest) -> ModuleType:
    request.getfixturevalue("npu")
    return importlib.import_module("torch_npu")
