"""How the failures that `VERL_NPU_VIRTUAL_FAULTS` asks for are made: in the compiled device, and in torch_npu's
operators."""

from __future__ import annotations

import difflib
import functools
import itertools
from collections.abc import Callable, Collection, Iterable
from typing import ParamSpec, Protocol, TypeVar

from ...environment import VIRTUAL_FAULTS
from ...errors import SettingError
from .grammar import Fault

__all__ = ["Device", "check_operators", "failing", "install", "wrap"]

ANY_RANK = -1  # kAnyRank in device/csrc/faults.h

P = ParamSpec("P")
T = TypeVar("T")


class Device(Protocol):
    """What makes faults below the operators: our compiled device, or the stub CANN under the installed torch_npu."""

    def die_at_collective(self, collective: int, rank: int) -> None: ...
    def slow_collectives(self, seconds: float, rank: int) -> None: ...
    def limit_bandwidth(self, gigabytes_per_second: float, rank: int) -> None: ...
    def fail_allocation(self, allocation: int, rank: int) -> None: ...
    def fail_allocations_above(self, size: int, rank: int) -> None: ...


def install(device: Device, faults: Iterable[Fault]) -> None:
    """Tell the device of the faults that are its own. Operators that fail are made by `wrap`, and of the installed
    torch_npu by what computes for it."""
    for fault in faults:
        rank = _rank(fault)
        if fault.collective is not None:
            device.die_at_collective(fault.collective, rank)
        elif fault.seconds is not None:
            device.slow_collectives(fault.seconds, rank)
        elif fault.bandwidth is not None:
            device.limit_bandwidth(fault.bandwidth, rank)
        elif fault.allocation is not None:
            device.fail_allocation(fault.allocation, rank)
        elif fault.above is not None:
            device.fail_allocations_above(int(fault.above * (1 << 30)), rank)


def failing(faults: Iterable[Fault]) -> list[tuple[str, int, int]]:
    """Return the operators that are to fail, each with its call (0 for all) and rank (-1 for all)."""
    return [(fault.operator, fault.call or 0, _rank(fault)) for fault in faults if fault.operator is not None]


def check_operators(faults: Iterable[Fault], operators: Collection[str], owner: str) -> None:
    """Check that the operators which are to fail are among those of their owner.

    Raises:
        SettingError: a fault names another one.
    """
    for fault in faults:
        if fault.operator is not None and fault.operator not in operators:
            raise SettingError(
                subject=f"{VIRTUAL_FAULTS.name}: operator={fault.operator}",
                expected=f"an operator that {owner} has",
                found="none of that name" + _alike(fault.operator, operators),
                fix="correct its name",
            )


def _alike(name: str, operators: Collection[str]) -> str:
    close = difflib.get_close_matches(name, operators, n=3)
    return f", but {', '.join(close)}" if close else ""


def _rank(fault: Fault) -> int:
    return ANY_RANK if fault.rank is None else fault.rank


def wrap(
    operators: dict[str, Callable[..., T]], faults: Iterable[Fault], rank: Callable[[], int]
) -> dict[str, Callable[..., T]]:
    """The operators, those that are to fail replaced.

    Raises:
        SettingError: a fault names an operator that the virtual Ascend does not have.
    """
    faults = tuple(faults)
    check_operators(faults, operators, "the virtual Ascend")
    wrapped = dict(operators)
    for fault in faults:
        if fault.operator is None:
            continue
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
