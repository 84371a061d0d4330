"""One line of a log that tells a step's numbers.

verl's console logger prints `step:N - name:value - …` (`concat_dict_to_str` in verl/utils/logger/aggregate_logger.py,
the same at every pin), its file logger `{"step": N, "data": {name: value}}` (`FileLogger` in verl/utils/tracking.py).
Ray puts the process in front, colours it, and may say after it how often it was repeated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Line", "parse"]

_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
# A progress bar on stderr may stand before it on the same line, with no space between.
_STEP = re.compile(r"(?<![\w/])step:(\d{1,15}) - (\S.*)")
_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf)"
# Names hold colons where a data set's name does; what follows a blank is not verl's, but Ray's or a progress bar's.
_METRIC = re.compile(
    rf"(?P<name>\S.*?):(?:np\.\w+\((?P<numpy>{_NUMBER}|True|False)\)|(?P<plain>{_NUMBER}|True|False))(?=\s|$)",
    re.IGNORECASE,
)
_STEPS = 10**15
_LARGEST = 1 << 1023
_TRUTH = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True, slots=True)
class Line:
    """What one line says of a step."""

    step: int
    metrics: Mapping[str, float]
    damaged: int = 0
    """How many of its parts could not be read: verl itself prints numbers only."""


def parse(text: str) -> Line | None:
    """Return what a line says, or None when it is no step line."""
    if text.lstrip().startswith("{"):
        return _file_logger(text)
    found = _STEP.search(_COLOUR.sub("", text))
    if found is None:
        return None
    metrics: dict[str, float] = {}
    damaged = 0
    for part in found.group(2).split(" - "):
        metric = _METRIC.match(part.strip())
        if metric is None:
            damaged += 1
        else:
            metrics[metric["name"]] = _number(metric["numpy"] or metric["plain"])
    return Line(int(found.group(1)), metrics, damaged) if metrics else None


def _number(text: str) -> float:
    truth = _TRUTH.get(text.lower())
    return float(text) if truth is None else truth


def _value(value: float | None) -> float:
    # orjson writes what is not a finite number as null.
    if value is None:
        return math.nan
    # Python does not make a float of an integer that is too large for one.
    if abs(value) < _LARGEST:
        return float(value)
    return math.inf if value > 0 else -math.inf


def _file_logger(text: str) -> Line | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    step, data = content.get("step"), content.get("data")
    if not isinstance(step, int) or isinstance(step, bool) or not isinstance(data, dict):
        return None
    if not 0 <= step < _STEPS:
        return None
    metrics = {name: _value(value) for name, value in data.items() if value is None or isinstance(value, int | float)}
    return Line(step, metrics) if metrics else None
