"""Fixtures that the tests of a replay share with those of the virtual Ascend."""

from __future__ import annotations

from virtual_ascend.testing.fixtures import torch_npu as torch_npu
