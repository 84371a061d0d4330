"""A reward without meaning, for verl's custom_reward_function: two answers share it only by chance."""

from __future__ import annotations

import zlib
from typing import Any


def grade(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """Return a number from 0 to 1, by a hash of the answer."""
    return zlib.crc32(solution_str.encode()) % 11 / 10
