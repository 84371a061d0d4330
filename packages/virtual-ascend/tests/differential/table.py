"""The table of the comparison in the documentation: the counts by wheel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from packaging.version import Version

from .comparing import Difference, Kind, counts

COUNTS = Path(__file__).with_name("counts.json")
DOCS = Path(__file__).resolve().parents[4] / "docs" / "reference"
BEGIN, END = "<!-- differential: made by tests/differential -->", "<!-- end of differential -->"
PAGES = ("virtual-ascend.md", "virtual-ascend.zh-CN.md")


def summary(found: list[Difference]) -> dict[str, dict[str, int]]:
    """Return the counts of one wheel, by area and kind."""
    return {area: {kind.value: c[kind] for kind in Kind if c[kind]} for area, c in counts(found).items()}


def write(version: str, found: list[Difference]) -> None:
    """Add the counts of one wheel, and rewrite the tables in both languages."""
    known = json.loads(COUNTS.read_text()) if COUNTS.is_file() else {}
    known[version] = summary(found)
    known = dict(sorted(known.items(), key=lambda item: Version(item[0])))
    COUNTS.write_text(json.dumps(known, indent=1) + "\n")
    for page in PAGES:
        text = (DOCS / page).read_text()
        head, _, rest = text.partition(BEGIN)
        _, _, tail = rest.partition(END)
        (DOCS / page).write_text(f"{head}{BEGIN}\n{counts_table(known)}\n{END}{tail}")


def counts_table(known: dict[str, Any]) -> str:
    """Return the counts: a row for each area, under it one for each wheel whose numbers differ."""
    lines = ["| area | torch_npu | compared | equal | false yes | false no | other |", "|---|---|---|---|---|---|---|"]
    areas = list(dict.fromkeys(area for one in known.values() for area in one))
    for area in reversed(areas):
        rows: dict[str, list[str]] = {}
        for version, one in known.items():
            found = one.get(area, {})
            numbers = (sum(found.values()), *(found.get(kind.value, 0) for kind in Kind))
            rows.setdefault(" | ".join(map(str, numbers)), []).append(version)
        lines += [f"| {area} | {', '.join(versions)} | {cells} |" for cells, versions in rows.items()]
    return "\n".join(lines)
