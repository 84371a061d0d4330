"""Operators of torch_npu that fail because `VERL_NPU_VIRTUAL_FAULTS` asks for it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from verl_npu.virtual.errors import SettingError
from verl_npu.virtual.faults import FAULTS, Fault, Kind

Operator = Callable[..., Any]


def wrap(operators: dict[str, Operator], faults: Iterable[Fault], rank: Callable[[], int]) -> dict[str, Operator]:
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
                f"{FAULTS}: operator={fault.operator}: the virtual Ascend has no such operator; expected one of "
                f"{', '.join(sorted(operators))}"
            )
        wrapped[fault.operator] = _failing(wrapped[fault.operator], fault, rank)
    return wrapped


def _failing(operator: Operator, fault: Fault, rank: Callable[[], int]) -> Operator:
    calls = itertools.count(1)

    @functools.wraps(operator)
    def call(*args: Any, **options: Any) -> Any:
        number = next(calls)
        if fault.call in (None, number) and fault.rank in (None, rank()):
            raise RuntimeError(f"{fault.operator}: call {number} failed, as {FAULTS} asks (virtual Ascend)")
        return operator(*args, **options)

    return call
