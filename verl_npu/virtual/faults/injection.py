"""How the failures that `VERL_NPU_VIRTUAL_FAULTS` asks for are made: in the compiled device, and in torch_npu's
operators."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from ...environment import VIRTUAL_FAULTS
from ...errors import SettingError
from ..device.extension import Extension
from .grammar import Fault, Kind

__all__ = ["install", "wrap"]

ANY_RANK = -1  # kAnyRank in device/csrc/faults.h

P = ParamSpec("P")
T = TypeVar("T")


def install(extension: Extension, faults: Iterable[Fault]) -> None:
    """Tell the compiled device of the faults that are its own; operators that fail are made by `wrap`."""
    for fault in faults:
        rank = ANY_RANK if fault.rank is None else fault.rank
        if fault.collective is not None:
            extension.die_at_collective(fault.collective, rank)
        elif fault.seconds is not None:
            extension.slow_collectives(fault.seconds, rank)
        elif fault.bandwidth is not None:
            extension.limit_bandwidth(fault.bandwidth, rank)
        elif fault.allocation is not None:
            extension.fail_allocation(fault.allocation, rank)
        elif fault.above is not None:
            extension.fail_allocations_above(int(fault.above * (1 << 30)), rank)


def wrap(
    operators: dict[str, Callable[..., T]], faults: Iterable[Fault], rank: Callable[[], int]
) -> dict[str, Callable[..., T]]:
    """The operators, those that are to fail replaced.

    Raises:
        SettingError: a fault names an operator that the virtual Ascend does not have.
    """
    wrapped = dict(operators)
    for fault in faults:
        if fault.kind is not Kind.FAIL or fault.operator is None:
            continue
        if fault.operator not in wrapped:
            raise SettingError(
                subject=f"{VIRTUAL_FAULTS.name}: operator={fault.operator}",
                expected=f"one of {', '.join(sorted(operators))}",
                found="an operator that the virtual Ascend does not have",
                fix="correct its name",
            )
        wrapped[fault.operator] = _failing(wrapped[fault.operator], fault, rank)
    return wrapped


def _failing(operator: Callable[P, T], fault: Fault, rank: Callable[[], int]) -> Callable[P, T]:
    calls = itertools.count(1)

    @functools.wraps(operator)
    def call(*args: P.args, **options: P.kwargs) -> T:
        number = next(calls)
        if fault.call in (None, number) and fault.rank in (None, rank()):
            asked = f"as {VIRTUAL_FAULTS.name} asks (virtual Ascend)"
            raise RuntimeError(f"{fault.operator}: call {number} failed, {asked}")
        return operator(*args, **options)

    return call
