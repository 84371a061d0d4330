"""A reward that any two answers share only by chance, as verl's custom_reward_function: it has no meaning."""

from __future__ import annotations

import zlib
from typing import Any


def grade(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """From 0 to 1, by a hash of the answer."""
    return zlib.crc32(solution_str.encode()) % 11 / 10
