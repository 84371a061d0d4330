"""The device is loaded once into the test process: torch takes a private device's name once and for all."""

from __future__ import annotations

from virtual_ascend.testing.fixtures import npu as npu
from virtual_ascend.testing.fixtures import python as python
from virtual_ascend.testing.fixtures import torch_npu as torch_npu
