from __future__ import annotations

import importlib
from types import ModuleType

import pytest


@pytest.fixture
def ascend(npu: ModuleType) -> ModuleType:
    """The virtual Ascend's own torch_npu."""
    return importlib.import_module("torch_npu")
