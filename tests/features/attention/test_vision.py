"""Packed sequences of Qwen2.5-VL at 796871d7, on a virtual NPU, with a transformers that lacks functions it needs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from virtual_ascend.testing.fixtures import Run

pytest.importorskip("torch")

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

PROGRAM = """
import json, torch, verl
from verl.models.transformers.qwen2_vl import flash_attention_forward

torch.manual_seed(0)
states = [torch.randn(1, 7, 4, 16).npu().half() for _ in range(3)]
positions = torch.tensor([0, 1, 2, 0, 1, 2, 3]).expand(3, 1, 7).npu()

def attention(first, last):
    parts = [state[:, first:last] for state in states]
    return flash_attention_forward(*parts, None, last - first, position_ids=positions[:, :, first:last])

packed = attention(0, 7)
print(json.dumps((packed - torch.cat([attention(0, 3), attention(3, 7)], 1)).abs().max().item()))
"""


@pytest.fixture
def paths(importable: Callable[[str], Path]) -> str:
    """Return a PYTHONPATH for verl at 796871d7."""
    return os.pathsep.join(filter(None, [str(importable("796871d7")), os.environ.get("PYTHONPATH")]))


def test_packed_sequences_are_as_each_sequence_alone(python: Run, paths: str) -> None:
    result = python(PROGRAM, PYTHONPATH=paths)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) < 1e-3


def test_without_verl_npu_upstream_calls_none(python: Run, paths: str) -> None:
    result = python(PROGRAM, PYTHONPATH=paths, VERL_NPU_DISABLE="attention")
    assert result.returncode != 0
    assert "TypeError: 'NoneType' object is not callable" in result.stderr
