"""Numbers that may be NaN or infinite: their mean, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Collection

__all__ = ["drawable", "mean", "number", "plain"]

_LARGEST_DRAWN = 1e100
"""What is drawn has to leave room for the sums and differences that its axis is made of."""


def drawable(value: float) -> bool:
    """Whether a curve can hold it; what is not finite, or beyond all sense, is left out of one."""
    return abs(value) < _LARGEST_DRAWN


def mean(values: Collection[float]) -> float:
    """Return the mean, which is NaN or infinite where a value is: statistics.fmean raises on some of those."""
    return sum(values) / len(values)


def number(value: float | None, unit: str = "") -> str:
    """Return a number as a person reads it."""
    return "" if value is None else f"{value:.4g}{' ' if unit else ''}{unit}"


def plain(value: float | None) -> float | str | None:
    """Return a number as JSON can hold it: what is not finite is the word nan, inf or -inf."""
    return value if value is None or math.isfinite(value) else str(value)
