"""Seeded faults are found at their operator, with their cause; and where there is no fault, none is found."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from verl_npu_workbench.layers.comparing import compare
from verl_npu_workbench.layers.recording import record

from .faults import FAULTS, Fault, found
from .models import BATCH, KINDS, answer, make


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_with_its_cause(fault: Fault) -> None:
    made = found(fault)
    assert made.first is not None
    assert (made.first.operator.name, made.side) == (fault.operator, fault.side)
    assert made.cause is not None
    assert made.cause.reason is fault.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_other_attention_functions_and_packed_sequences_are_as_expected(kind: str, dtype: torch.dtype) -> None:
    model = make(kind, dtype)
    trainer = record(model, BATCH)
    engine = copy.deepcopy(model)
    engine.config._attn_implementation = "sdpa"
    for other in (record(engine, BATCH), answer(model)):
        assert compare(model, trainer, other).first is None
