"""Compares the results of a computation with the expected results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

FLOAT32 = 1e-5
# One unit in the last place of bfloat16, relative to the largest number of a tensor.
BFLOAT16_UNIT = 2.0**-7
BFLOAT16_UNITS = 2


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest absolute difference, divided by the largest absolute expected value."""
    largest = float(expected.abs().max())
    return float((found - expected).abs().max()) / max(largest, 1e-12)


def distances(found: dict[str, Any], expected: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the name of each value of a case, and its distance from the expected value. Raises KeyError if only one of
    `found` and `expected` has the value."""
    if found.keys() != expected.keys():
        raise KeyError(f"these values are only on one of the two sides: {sorted(found.keys() ^ expected.keys())}")
    for name, value in expected.items():
        yield name, distance(found[name], value)


def failures(found: dict[str, Any], expected: dict[str, Any], dtype: str) -> list[str]:
    """Return a line for each value in `found` that is farther from the reference, `expected`, than its limit.

    In float32, the limit is a relative distance of 1e-5. In bfloat16, the reference is float32 with the same weights.
    The limit for logits, gradients, and updated weights is two units in the last place or 1.5 times the distance of
    unpatched bfloat16, whichever is larger.
    """
    limits = dict.fromkeys(expected["values"], FLOAT32)
    if dtype == "bfloat16":
        away_by_kind = dict.fromkeys(map(_kind, expected["values"]), BFLOAT16_UNITS * BFLOAT16_UNIT)
        for name, unfused in distances(expected["unfused"], expected["values"]):
            away_by_kind[_kind(name)] = max(away_by_kind[_kind(name)], 1.5 * unfused)
        limits = {name: away_by_kind[_kind(name)] for name in expected["values"]}
    return [
        f"{name} is {away:.2e} away, limit {limits[name]:.2e}"
        for name, away in distances(found["values"], expected["values"])
        if not away <= limits[name]
    ]


def _kind(name: str) -> str:
    return name.partition(" ")[0]
