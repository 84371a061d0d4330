"""Calls operators with unusual or mixed types, and records each result or error.

This module reports no verdict. The records are used to judge virtual NPUs. Arguments after the usual ones of a stage
name the calls that crashed an earlier process. These calls are not repeated.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..corpus import Key, Kind, Observation
from ..record import described
from .cases import Case, cases
from .setup import Setup
from .units import result_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_STAGE_ARGUMENTS = 6


def run(setup: Setup) -> None:
    """Run each unusual call, except the calls that crashed an earlier process."""
    setup.npus()
    import torch

    torch.npu.set_device(0)
    left_out = set(sys.argv[_STAGE_ARGUMENTS:])
    for name, case, made in _calls():
        key = json.dumps([name, case])
        if key not in left_out:
            setup.record.check(key, partial(_observed, setup, name, case, made))


def _observed(setup: Setup, name: str, case: str, made: Callable[[], Tensor | Sequence[Tensor]]) -> str:
    import torch

    try:
        found = made()
    except AttributeError:
        return "this torch_npu has no such operator"
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        setup.record.observe(Observation(key=Key(Kind.OPERATOR, name, case), said=described(error)))
        return "refused"
    outputs = [found] if isinstance(found, torch.Tensor) else list(found)
    results = tuple(result_of(f"result {place}", each, {}) for place, each in enumerate(outputs))
    setup.record.observe(Observation(key=Key(Kind.OPERATOR, name, case), results=results))
    return "answered"


def _calls() -> Iterator[tuple[str, str, Callable[[], Tensor | Sequence[Tensor]]]]:
    for case in cases():
        if case.operator:
            for odd in ("float64", "int32"):
                yield case.name, f"all {odd}", partial(_called, case, [odd] * len(case.inputs))
            if len(case.inputs) > 1:
                mixed = ["bfloat16", *["float32"] * (len(case.inputs) - 1)]
                yield case.name, "bfloat16 and float32", partial(_called, case, mixed)
    yield from _torch_calls()


def _called(case: Case, dtypes: Sequence[str]) -> Tensor | Sequence[Tensor]:
    import torch
    import torch_npu

    # Use the numbers of the float32 case, converted to another type.
    given = [
        each if not each.is_floating_point() else each.to(getattr(torch, dtype))
        for each, dtype in zip(case.made("float32"), dtypes, strict=True)
    ]
    return case.on_npu(torch_npu, [each.npu() for each in given])


def _pair(operator: Callable[..., Tensor], first: torch.dtype, second: torch.dtype) -> Tensor:
    import torch

    return operator(torch.ones(8, 8, dtype=first, device="npu"), torch.ones(8, 8, dtype=second, device="npu"))


def _torch_calls() -> Iterator[tuple[str, str, Callable[[], Tensor | Sequence[Tensor]]]]:
    import torch

    floats = (torch.float32, torch.float16, torch.bfloat16)
    for first in (*floats, torch.int64, torch.int32, torch.bool):
        for second in (*floats, torch.int64):
            text = f"{first} and {second}"
            yield "add", text, partial(_pair, torch.add, first, second)
            yield "matmul", text, partial(_pair, torch.matmul, first, second)
    yield "to", "float64", lambda: torch.ones(8, device="npu").double()
    yield "add", "NPU and host", lambda: torch.ones(8, device="npu") + torch.ones(8)
    yield (
        "embedding",
        "int32 places",
        lambda: torch.nn.functional.embedding(
            torch.ones(4, dtype=torch.int32, device="npu"), torch.ones(8, 8, device="npu")
        ),
    )
