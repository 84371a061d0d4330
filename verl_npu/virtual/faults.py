"""Failures that the user asks for: `VERL_NPU_VIRTUAL_FAULTS`, faults separated by commas, each `KIND:KEY=VALUE:...`.

    die:collective=3:rank=1        rank 1 is killed as it starts its third collective
    slow:seconds=0.2               every collective takes 0.2 s more
    slow:bandwidth=25              the tensors of a rank's collectives move at 25 GB/s at most, one after another
    oom:allocation=100:rank=0      rank 0's hundredth allocation is out of memory
    oom:above=1.5                  so is every allocation above 1.5 GiB
    fail:operator=npu_rms_norm:call=2   the second call of torch_npu.npu_rms_norm fails (without `call`: every one)

Every kind takes `rank`; without it, all ranks have the fault. Counts start at 1 and are each process's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from types import ModuleType

from verl_npu.virtual.errors import SettingError

FAULTS = "VERL_NPU_VIRTUAL_FAULTS"
ANY_RANK = -1  # kAnyRank in csrc/faults.h


class Kind(Enum):
    """What goes wrong."""

    DIE = "die"
    SLOW = "slow"
    OUT_OF_MEMORY = "oom"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure; `rank` None is every rank. What its kind does not take is None."""

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

# Per kind: of which keys exactly one is needed, and which may be there besides.
_TAKES: dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Kind.DIE: (("collective",), ("rank",)),
    Kind.SLOW: (("seconds", "bandwidth"), ("rank",)),
    Kind.OUT_OF_MEMORY: (("allocation", "above"), ("rank",)),
    Kind.FAIL: (("operator",), ("call", "rank")),
}


def parse(text: str) -> tuple[Fault, ...]:
    """The faults of a value of `VERL_NPU_VIRTUAL_FAULTS`.

    Raises:
        SettingError: it is not of the grammar; the message names the fault and what was expected.
    """
    return tuple(_fault(item.strip()) for item in text.split(",") if item.strip())


def _fault(item: str) -> Fault:
    word, *settings = item.split(":")
    kinds = {kind.value: kind for kind in Kind}
    if word not in kinds:
        raise _refusal(item, f"expected one of {', '.join(kinds)} first, found {word!r}")
    kind = kinds[word]
    needed, optional = _TAKES[kind]
    values: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in (*needed, *optional) or key in values:
            raise _refusal(item, f"{word} takes {_form(kind)}, each once, found {setting!r}")
        try:
            values[key] = _KEYS[key](value)
        except ValueError as error:
            raise _refusal(item, f"{key} is {error}, found {value!r}") from None
    if sum(key in values for key in needed) != 1:
        raise _refusal(item, f"{word} takes {_form(kind)}")
    return Fault(kind, **values)  # type: ignore[arg-type]


def _form(kind: Kind) -> str:
    needed, optional = _TAKES[kind]
    return f"{' or '.join(f'{key}=' for key in needed)} and, if you like, {' and '.join(f'{k}=' for k in optional)}"


def _refusal(item: str, problem: str) -> SettingError:
    return SettingError(f"{FAULTS}: {item!r}: {problem}; for instance {FAULTS}=die:collective=3:rank=1")


def install(extension: ModuleType, faults: Iterable[Fault]) -> None:
    """Tell the compiled device; operators that fail are wrapped where torch_npu exports them (`failing`)."""
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
