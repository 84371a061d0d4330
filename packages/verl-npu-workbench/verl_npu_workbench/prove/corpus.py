"""Recorded observations of NPUs: operators' results, rejected calls, memory, and seconds.

Inputs are not recorded, because they follow from a case's name and seed. For a result, three things are recorded: its
digest, some of its numbers, and its error relative to the float64 result, in units in the last place (ULP).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

SAMPLES = 16
"""The maximum number of numbers that are recorded of a result."""


class Kind(enum.Enum):
    """The kind of an observation."""

    OPERATOR = "operator"
    MEMORY = "memory"
    SECONDS = "seconds"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One tensor: a result of an operator, or the gradient of one of the operator's inputs."""

    name: str
    dtype: str
    shape: str
    digest: str
    sample: Annotated[tuple[float, ...], SAMPLES]
    """Evenly spaced numbers of the tensor. NaN and infinities are replaced by finite numbers."""
    units: Mapping[str, float]
    """The distances of the NPU's and of the CPU's results from the float64 result, in ULP of the result's type."""


@dataclass(frozen=True, slots=True)
class Key:
    """One request to an NPU."""

    kind: Kind
    name: str
    """The operator, the collective, or the kind of memory."""
    case: str = ""
    """A complete description of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One request to an NPU, and the result."""

    key: Key
    said: str = ""
    """The reason why the request was rejected. Empty if it was not rejected."""
    results: tuple[Result, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    """Bytes, seconds, ranks."""


class Other(enum.Enum):
    """A kind of difference between two devices."""

    ROUNDS = "rounds otherwise"
    """The numbers differ by no more than rounding allows."""
    VALUES = "other values"
    LOOKS = "another dtype or shape"
    ANSWERS = "answers where the other refuses"
    REFUSES = "refuses where the other answers"
    WORDS = "refuses in other words"
    MEMORY = "takes other memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between two devices."""

    how: Other
    name: str
    case: str
    text: str

    def __str__(self) -> str:
        return f"{self.how.value}: {self.name}({self.case}): {self.text}"


_UNITS = {"torch.float32": 2.0**-23, "torch.float16": 2.0**-10, "torch.bfloat16": 2.0**-7}
_ALLOWED = 4.0
"""The distance, in ULP, that two devices may have in addition to their own distances from float64."""


def compared(recorded: Iterable[Observation], found: Iterable[Observation]) -> Iterator[Difference]:
    """Yield the differences between `recorded` and `found`. Observations that only one of them contains are
    ignored."""
    there = {each.key: each for each in found}
    for one in recorded:
        other = there.get(one.key)
        if other is not None and one.key.kind in (Kind.OPERATOR, Kind.MEMORY):
            yield from (
                _memory_differences(one, other) if one.key.kind is Kind.MEMORY else _operator_differences(one, other)
            )


def in_both(recorded: Iterable[Observation], found: Iterable[Observation]) -> int:
    """Return the number of requests that both collections of observations contain."""
    return len({each.key for each in recorded} & {each.key for each in found})


def _memory_differences(one: Observation, other: Observation) -> Iterator[Difference]:
    for name, size in one.figures.items():
        if other.figures.get(name, size) != size:
            text = f"{name}: {size:.0f} recorded, {other.figures[name]:.0f} here"
            yield Difference(how=Other.MEMORY, name=one.key.name, case=one.key.case, text=text)


def _operator_differences(one: Observation, other: Observation) -> Iterator[Difference]:
    def difference(kind: Other, text: str) -> Difference:
        return Difference(how=kind, name=one.key.name, case=one.key.case, text=text)

    if one.said and not other.said:
        yield difference(Other.ANSWERS, f"recorded: {one.said}")
    elif other.said and not one.said:
        yield difference(Other.REFUSES, f"here: {other.said}")
    elif one.said != other.said:
        yield difference(Other.WORDS, f"recorded: {one.said}; here: {other.said}")
    elif len(one.results) != len(other.results):
        yield difference(Other.LOOKS, f"{len(one.results)} results recorded, {len(other.results)} here")
    else:
        for mine, its in zip(one.results, other.results, strict=True):
            if (mine.dtype, mine.shape) != (its.dtype, its.shape):
                text = f"{mine.name}: {mine.dtype}{mine.shape} recorded, {its.dtype}{its.shape} here"
                yield difference(Other.LOOKS, text)
            elif mine.digest != its.digest:
                yield difference(*_number_difference(mine, its))


def _number_difference(mine: Result, its: Result) -> tuple[Other, str]:
    away = _distance(mine.sample, its.sample, mine.dtype)
    allowed = _ALLOWED + mine.units.get("largest", 0.0) + its.units.get("largest", 0.0)
    text = f"{mine.name}: {away:.3g} units of the last place away in {len(mine.sample)} samples, {allowed:.3g} allowed"
    return (Other.ROUNDS if away <= allowed else Other.VALUES), text


def _distance(first: Sequence[float], second: Sequence[float], dtype: str) -> float:
    """Return the largest difference in ULP, computed as in `stages.units`, but only from samples."""
    unit = _UNITS.get(dtype, 0.0)
    if len(first) != len(second) or not first:
        return math.inf
    typical = math.sqrt(sum(value * value for value in first) / len(first))
    far = [
        abs(one - other) / max(unit * max(abs(one), typical), 1e-300) for one, other in zip(first, second, strict=True)
    ]
    return max(far)
