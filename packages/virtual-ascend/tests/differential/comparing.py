"""The comparison of two observations of the same things."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .behaviours import SAME

TOLERANCE = 0.02
NONE = "NoneType"
AREAS = {"call": "calls", "gradient": "gradients", "behaviour": "behaviours"}
"""The area of an observation, by the beginning of its label."""


class Kind(Enum):
    """The result of a comparison."""

    EQUAL = "equal"
    FALSE_YES = "false yes"
    """Ours accepts what the wheel refuses: a program that runs here fails there."""
    FALSE_NO = "false no"
    """Ours refuses what the wheel accepts."""
    OTHER = "other"
    """Both accept, with other results."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One comparison."""

    area: str
    what: str
    kind: Kind
    reason: str = ""


def compared(ours: dict[str, Any], wheel: dict[str, Any], used: dict[str, list[str]]) -> list[Difference]:
    """Compare all observations. Both hold results by name; a call that ended a process has the end "ends"."""
    found = _names(ours["names"], wheel["names"])
    found += _used(ours["names"], wheel["names"], used)
    found += _schemas(ours["schemas"], wheel["schemas"])
    for label, mine in ours.items():
        kind, _, what = label.partition(" ")
        if kind in AREAS and label in wheel:
            found.append(_call(AREAS[kind], what, mine, wheel[label]))
    return found


def _names(ours: dict[str, Any], wheel: dict[str, Any]) -> list[Difference]:
    found = []
    for module, names in ours.items():
        theirs = wheel.get(module, {})
        for name, mine in names.items():
            if mine["own"]:
                found.append(_name(module, name, name in theirs))
            other = theirs.get(name, {})
            for what in ("parameters", "members"):
                if what in mine and what in other:
                    more = sorted(set(mine[what]) - set(other[what]))
                    kind = Kind.FALSE_YES if more else Kind.EQUAL
                    found.append(Difference(what, f"{module}.{name}: {', '.join(more)}", kind))
    return found


# Names that our own modules need, or take from each other: no program asks for them there.
UNIMPLEMENTED = frozenset({"is_older_than", "leave_out", "missing", "not_implemented"})
INSIDE = UNIMPLEMENTED | {"Absent", "F", "IMPLEMENTED", "MISSING", "TYPE_CHECKING", "TracebackType"}
MODULES = frozenset(
    {"torch_npu.npu.options", "torch_npu.npu.types", "torch_npu.profiler.options", "torch_npu.profiler.trace"}
)
ELSEWHERE = frozenset({"torch_npu.npu.streams", "torch_npu.npu.memory", "torch_npu.npu.random"})


def _name(module: str, name: str, there: bool) -> Difference:
    what = f"{module}.{name}"
    if there:
        return Difference("names", what, Kind.EQUAL)
    if name in INSIDE or what in MODULES:
        return Difference("names", what, Kind.OTHER, "a name of our own code")
    if module in ELSEWHERE:
        return Difference("names", what, Kind.OTHER, "the wheel has it in another module")
    return Difference("names", what, Kind.FALSE_YES)


def _used(ours: dict[str, Any], wheel: dict[str, Any], used: dict[str, list[str]]) -> list[Difference]:
    """Compare the names that libraries use: ours should have those that the wheel has."""
    found = []
    for name, users in used.items():
        module, _, last = name.rpartition(".")
        if module not in wheel or last not in wheel[module]:
            continue
        mine = ours.get(module, {}).get(last)
        if mine is not None and not mine["missing"]:
            found.append(Difference("used names", name, Kind.EQUAL))
        else:
            reason = "not implemented" if mine is not None else "does not exist"
            found.append(Difference("used names", name, Kind.FALSE_NO, f"{reason}; used by {', '.join(users)}"))
    return found


def _schemas(ours: dict[str, Any], wheel: dict[str, Any]) -> list[Difference]:
    found = []
    for name, schemas in ours.items():
        # The wheel has variants that write into a result of the caller's; ours need not have them.
        more = [schema for schema in schemas if schema not in wheel.get(name, [])]
        found.append(Difference("schemas", f"{name} {more}", Kind.FALSE_YES if more else Kind.EQUAL))
    return found


def _call(area: str, what: str, ours: dict[str, Any], wheel: dict[str, Any]) -> Difference:
    def difference(kind: Kind, reason: str = "") -> Difference:
        return Difference(area, what, kind, reason)

    if ours["end"] == "ends":
        return difference(Kind.OTHER, f"ours ends the process: {ours['said']}")
    if ours["end"] == "raises":
        if wheel["end"] == "ends":
            return difference(Kind.EQUAL, "the wheel ends the process; ours raises")
        if wheel["end"] == "raises" and not wheel["reference"]:
            return difference(Kind.EQUAL, "" if ours["type"] == wheel["type"] else "another type of error")
        if ours["type"] == "NotImplementedError":
            return difference(Kind.FALSE_NO, "not implemented")
        if area == "gradients" and all(one.get("type") == NONE for one in wheel.get("what", [{}])):
            return difference(Kind.FALSE_NO, "the wheel warns, and gives no gradient")
        return difference(Kind.FALSE_NO, "ours refuses; the code of the wheel does not")
    if wheel["end"] == "ends":
        return difference(Kind.FALSE_YES, f"the wheel ends the process: {wheel['said']}")
    if wheel["end"] == "raises":
        if wheel["reference"]:
            return difference(Kind.OTHER, f"the reference refuses under the wheel alone: {wheel['said']}")
        return difference(Kind.FALSE_YES, f"{wheel['type']}: {wheel['said']}")
    if area == "gradients" and any(map(_is_lost, ours["what"], wheel["what"])):
        return difference(Kind.FALSE_YES, "the wheel gives no gradient")
    same = _answers(what, ours["what"], wheel["what"]) if area == "behaviours" else None
    reason = _results(ours["what"], wheel["what"]) if same is None else same
    return difference(Kind.OTHER if reason else Kind.EQUAL, reason)


def _is_lost(mine: dict[str, Any], other: dict[str, Any]) -> bool:
    return other.get("type") == NONE and mine.get("type") != NONE


def _answers(what: str, ours: str, wheel: str) -> str:
    return f"ours answers {ours}, the wheel {wheel}" if what in SAME and ours != wheel else ""


def _results(ours: list[dict[str, Any]], wheel: list[dict[str, Any]]) -> str:
    if len(ours) != len(wheel):
        return f"{len(ours)} results, the wheel has {len(wheel)}"
    for number, (mine, other) in enumerate(zip(ours, wheel, strict=True)):
        for what in ("type", "dtype", "shape"):
            if mine.get(what) != other.get(what):
                return f"result {number}: {what} {mine.get(what)}, the wheel's is {other.get(what)}"
        if any(not _close(a, b) for a, b in zip(mine.get("values", ()), other.get("values", ()), strict=True)):
            return f"result {number}: other values"
    return ""


def _close(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= TOLERANCE * max(1.0, abs(a), abs(b))


def counts(found: list[Difference]) -> dict[str, Counter[Kind]]:
    """Count the results of comparisons by area."""
    by_area: dict[str, Counter[Kind]] = {}
    for one in found:
        by_area.setdefault(one.area, Counter())[one.kind] += 1
    return by_area
