"""Failures that the user requests in `VIRTUAL_ASCEND_FAULTS`, separated by commas, and the code that causes them.

Each has the form `KIND:KEY=VALUE:...`:

    die:collective=3:rank=1        rank 1 is killed as it starts its third collective slow:seconds=0.2
    every collective takes 0.2 s longer slow:bandwidth=25              the tensors of a rank's collectives move at 25
    GB/s at most, one after another oom:allocation=100:rank=0      rank 0's hundredth allocation runs out of memory
    oom:above=1.5                  every allocation above 1.5 GiB runs out of memory fail:operator=npu_rms_norm:call=2
    the second call of torch_npu.npu_rms_norm fails (without `call`: every one)

Every kind takes `rank`. Without it, the fault applies to all ranks. Each process has its own counters, which start at
1.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import ParamSpec, Protocol, TypeVar

from .errors import SettingError
from .variables import FAULTS


class Kind(Enum):
    """A kind of failure."""

    DIE = "die"
    SLOW = "slow"
    OUT_OF_MEMORY = "oom"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Fault:
    """One requested failure. If `rank` is None, the fault applies to every rank. Fields that the fault's kind does
    not use are None."""

    kind: Kind
    rank: int | None = None
    collective: int | None = None
    seconds: float | None = None
    bandwidth: float | None = None
    allocation: int | None = None
    above: float | None = None
    operator: str | None = None
    call: int | None = None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise ValueError("a number from 1")
    return int(text)


def _rank(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("a number from 0")
    return int(text)


def _amount(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = 0.0
    if not (math.isfinite(amount) and amount > 0):
        raise ValueError("a number above 0")
    return amount


def _name(text: str) -> str:
    if not text.isidentifier():
        raise ValueError("the name of an operator of torch_npu")
    return text


_KEYS: dict[str, Callable[[str], object]] = {
    "rank": _rank,
    "collective": _count,
    "seconds": _amount,
    "bandwidth": _amount,
    "allocation": _count,
    "above": _amount,
    "operator": _name,
    "call": _count,
}


# For each kind, the keys (exactly one of them is required), and the optional keys.
_TAKES: dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Kind.DIE: (("collective",), ("rank",)),
    Kind.SLOW: (("seconds", "bandwidth"), ("rank",)),
    Kind.OUT_OF_MEMORY: (("allocation", "above"), ("rank",)),
    Kind.FAIL: (("operator",), ("call", "rank")),
}


def parse(text: str) -> tuple[Fault, ...]:
    """Parse a value of `VIRTUAL_ASCEND_FAULTS`.

    Raises:
        SettingError: the value does not follow the grammar; the message names the fault and the expected form.
    """
    return tuple(_fault(item.strip()) for item in text.split(",") if item.strip())


def _fault(item: str) -> Fault:
    word, *settings = item.split(":")
    kinds = {kind.value: kind for kind in Kind}
    if word not in kinds:
        raise _refusal(item, f"one of {', '.join(kinds)} first", repr(word))
    kind = kinds[word]
    needed, optional = _TAKES[kind]
    values: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in (*needed, *optional) or key in values:
            raise _refusal(item, f"{word} with {_form(kind)}, each once", repr(setting))
        try:
            values[key] = _KEYS[key](value)
        except ValueError as error:
            raise _refusal(item, f"{key} to be {error}", repr(value)) from None
    if sum(key in values for key in needed) != 1:
        given = " and ".join(f"{key}=" for key in needed if key in values)
        raise _refusal(item, f"{word} with {_form(kind)}", given or f"only {word}")
    return Fault(kind, **values)  # type: ignore[arg-type]


def _form(kind: Kind) -> str:
    needed, optional = _TAKES[kind]
    return f"{' or '.join(f'{key}=' for key in needed)} and optionally {' and '.join(f'{k}=' for k in optional)}"


def _refusal(item: str, expected: str, found: str) -> SettingError:
    name = FAULTS.name
    return SettingError(
        subject=f"{name}: {item!r}",
        expected=expected,
        found=found,
        fix=f"correct the value, for example {name}=die:collective=3:rank=1",
    )


ANY_RANK = -1  # kAnyRank in device/csrc/faults.h
P = ParamSpec("P")
T = TypeVar("T")


class Device(Protocol):
    """The software layer below the operators, which causes the faults. This is virtual-ascend's compiled device, or
    the stub CANN under a real torch_npu."""

    def die_at_collective(self, collective: int, rank: int) -> None: ...
    def slow_collectives(self, seconds: float, rank: int) -> None: ...
    def limit_bandwidth(self, gigabytes_per_second: float, rank: int) -> None: ...
    def fail_allocation(self, allocation: int, rank: int) -> None: ...
    def fail_allocations_above(self, size: int, rank: int) -> None: ...


def install(device: Device, faults: Iterable[Fault]) -> None:
    """Tell the device which faults to cause. Failures of operators are caused elsewhere: by `wrap` or, with a real
    torch_npu, by the compute module."""
    for fault in faults:
        rank = _rank_of(fault)
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
    """Return the operators that must fail. Each item also contains the number of the call that fails (0 for every
    call) and the rank (-1 for every rank)."""
    return [(fault.operator, fault.call or 0, _rank_of(fault)) for fault in faults if fault.operator is not None]


def check_operators(faults: Iterable[Fault], operators: Collection[str], owner: str) -> None:
    """Check that `owner` has every operator that a fault names.

    Raises:
        SettingError: a fault names an unknown operator.
    """
    for fault in faults:
        if fault.operator is not None and fault.operator not in operators:
            raise SettingError(
                subject=f"{FAULTS.name}: operator={fault.operator}",
                found=f"{owner} has no operator with this name",
                fix="correct the name" + _alike(fault.operator, operators),
            )


def _alike(name: str, operators: Collection[str]) -> str:
    close = difflib.get_close_matches(name, operators, n=3)
    return f"; similar names: {', '.join(close)}" if close else ""


def _rank_of(fault: Fault) -> int:
    return ANY_RANK if fault.rank is None else fault.rank


def wrap(
    operators: dict[str, Callable[..., T]], faults: Iterable[Fault], rank: Callable[[], int]
) -> dict[str, Callable[..., T]]:
    """Return a copy of `operators` in which each operator that a fault selects is replaced by a function that fails.

    Raises:
        SettingError: a fault names an operator that virtual-ascend does not have.
    """
    faults = tuple(faults)
    check_operators(faults, operators, "virtual-ascend")
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
            raise RuntimeError(f"{fault.operator}: {FAULTS.name} made call {number} fail (virtual Ascend)")
        return operator(*args, **options)

    return call
