"""Typical mixes of one rank's sequence lengths in RL, in tokens, each with a micro-batch's budget."""

from __future__ import annotations

import random
from collections.abc import Callable

Mix = tuple[Callable[[random.Random], list[int]], int]

MIXES: dict[str, Mix] = {
    "uniform": (lambda chance: [chance.randint(512, 8192) for _ in range(64)], 20480),
    "log-normal": (lambda chance: [min(24576, int(chance.lognormvariate(7.75, 0.8)) + 1) for _ in range(128)], 24576),
    "bimodal": (
        lambda chance: [
            chance.randint(19000, 21000) if chance.random() < 0.2 else chance.randint(500, 1500) for _ in range(128)
        ],
        24576,
    ),
    "long": (lambda chance: [chance.randint(7000, 8192) for _ in range(128)], 8192 * 3),
}


def first_fit_decreasing(lengths: list[int], budget: int) -> int:
    """Return the number of bins that first-fit-decreasing needs, computed straight from its definition."""
    held: list[int] = []
    for length in sorted(lengths, reverse=True):
        for number, tokens in enumerate(held):
            if tokens + length <= budget:
                held[number] += length
                break
        else:
            held.append(length)
    return len(held)


def work(lengths: list[int]) -> list[int]:
    """Return the cost that upstream balances from v0.6.1 on: the operations of a 7B model, in upstream's unit."""
    return [24576 * length + length**2 for length in lengths]
