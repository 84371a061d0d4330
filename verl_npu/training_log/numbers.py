"""Numbers that may be NaN or infinite: their mean, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Collection

__all__ = ["mean", "number", "plain"]


def mean(values: Collection[float]) -> float:
    """Return the mean, which is NaN or infinite where a value is: statistics.fmean raises on some of those."""
    return sum(values) / len(values)


def number(value: float | None, unit: str = "") -> str:
    """Return a number as a person reads it."""
    return "" if value is None else f"{value:.4g}{' ' if unit else ''}{unit}"


def plain(value: float | None) -> float | str | None:
    """Return a number as JSON can hold it: what is not finite is the word nan, inf or -inf."""
    return value if value is None or math.isfinite(value) else str(value)
