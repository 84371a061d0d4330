"""The tables of what was compared, in the documentation."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from packaging.version import Version

from .comparing import Difference, Kind, counts

__all__ = ["of_counts", "summary", "write"]

COUNTS = Path(__file__).with_name("counts.json")
DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN, END = "<!-- differential: made by tests/differential -->", "<!-- end of differential -->"


def summary(found: list[Difference]) -> dict[str, Any]:
    """The counts of one wheel, and the reasons of what differs."""
    why = Counter((one.area, one.kind.value, _short(one)) for one in found if one.kind is not Kind.EQUAL)
    return {
        "counts": {area: {kind.value: c[kind] for kind in Kind if c[kind]} for area, c in counts(found).items()},
        "why": [[*key, count] for key, count in sorted(why.items())],
    }


def write(version: str, found: list[Difference]) -> None:
    """Take up the counts of one wheel, and make the tables in both languages anew."""
    known = json.loads(COUNTS.read_text()) if COUNTS.is_file() else {}
    known[version] = summary(found)
    known = dict(sorted(known.items(), key=lambda item: Version(item[0])))
    COUNTS.write_text(json.dumps(known, indent=1) + "\n")
    for doc in ("virtual-ascend.md", "virtual-ascend.zh-CN.md"):
        text = (DOCS / doc).read_text()
        head, _, rest = text.partition(BEGIN)
        _, _, tail = rest.partition(END)
        (DOCS / doc).write_text(f"{head}{BEGIN}\n{of_counts(known)}\n\n{of_reasons(known)}\n{END}{tail}")


def of_counts(known: dict[str, Any]) -> str:
    """How many comparisons ended how, by wheel and area."""
    lines = ["| torch_npu | area | compared | equal | false yes | false no | other |", "|---|---|---|---|---|---|---|"]
    for version, one in known.items():
        for area, c in one["counts"].items():
            cells = " | ".join(str(c.get(kind.value, 0)) for kind in Kind)
            lines.append(f"| {version} | {area} | {sum(c.values())} | {cells} |")
    return "\n".join(lines)


def of_reasons(known: dict[str, Any]) -> str:
    """Why they differ, by area, with the number for each wheel."""
    rows: dict[tuple[str, str, str], dict[str, int]] = {}
    for version, one in known.items():
        for area, kind, reason, count in one["why"]:
            rows.setdefault((area, kind, reason), {})[version] = count
    lines = [f"| area | kind | reason | {' | '.join(known)} |", "|---" * (3 + len(known)) + "|"]
    for (area, kind, reason), by_version in sorted(rows.items()):
        cells = " | ".join(str(by_version.get(version, 0)) for version in known)
        lines.append(f"| {area} | {kind} | {reason} | {cells} |")
    return "\n".join(lines)


def _short(one: Difference) -> str:
    # Single calls are too many to be listed: their reasons are, each with its operator.
    if one.area == "calls":
        operator = one.what.split()[1].partition("(")[0]
        return f"`{operator}`: {one.reason}"
    return f"`{one.what.strip()}`: {one.reason}" if one.reason else f"`{one.what.strip()}`"
