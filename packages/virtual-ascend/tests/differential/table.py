"""The tables of the comparison in the documentation: the counts by wheel, and folded below them the differences."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from .comparing import Difference, Kind, counts

__all__ = ["COUNTS", "DOCS", "PAGES", "counts_table", "shown", "summary", "write"]

COUNTS = Path(__file__).with_name("counts.json")
DOCS = Path(__file__).resolve().parents[4] / "docs" / "reference"
BEGIN, END = "<!-- differential: made by tests/differential -->", "<!-- end of differential -->"
REFUSES = "ours refuses; the code of the wheel does not"


@dataclass(frozen=True, slots=True)
class Fold:
    """A part of the differences, which a reader opens."""

    area: str
    kind: Kind
    title: dict[str, str]
    """The title by language."""


FOLDS = (
    Fold(
        "calls",
        Kind.FALSE_NO,
        {"en": "Calls that ours refuses and the wheel's code takes", "zh": "我们拒绝而 wheel 的代码接受的调用"},
    ),
    Fold("calls", Kind.OTHER, {"en": "Calls with other results", "zh": "结果不同的调用"}),
    Fold(
        "gradients",
        Kind.FALSE_NO,
        {"en": "Gradients that ours refuses and the wheel's code computes", "zh": "我们拒绝而 wheel 的代码计算的梯度"},
    ),
    Fold("gradients", Kind.OTHER, {"en": "Gradients with other results", "zh": "结果不同的梯度"}),
    Fold("behaviours", Kind.FALSE_NO, {"en": "Behaviours that ours refuses", "zh": "我们拒绝的行为"}),
    Fold(
        "used names",
        Kind.FALSE_NO,
        {"en": "Names that libraries use and ours lacks", "zh": "库会使用而我们没有的名字"},
    ),
    Fold("", Kind.FALSE_YES, {"en": "False yes", "zh": "False yes"}),
)
PAGES = {"virtual-ascend.md": "en", "virtual-ascend.zh-CN.md": "zh"}


def summary(found: list[Difference]) -> dict[str, Any]:
    """Return the counts of one wheel, and the reasons of the differences."""
    why = Counter((one.area, one.kind.value, _short(one)) for one in found if one.kind is not Kind.EQUAL)
    return {
        "counts": {area: {kind.value: c[kind] for kind in Kind if c[kind]} for area, c in counts(found).items()},
        "why": [[*key, count] for key, count in sorted(why.items())],
    }


def write(version: str, found: list[Difference]) -> None:
    """Add the counts of one wheel, and rewrite the tables in both languages."""
    known = json.loads(COUNTS.read_text()) if COUNTS.is_file() else {}
    known[version] = summary(found)
    known = dict(sorted(known.items(), key=lambda item: Version(item[0])))
    COUNTS.write_text(json.dumps(known, indent=1) + "\n")
    for page, language in PAGES.items():
        text = (DOCS / page).read_text()
        head, _, rest = text.partition(BEGIN)
        _, _, tail = rest.partition(END)
        (DOCS / page).write_text(f"{head}{BEGIN}\n{shown(known, language)}\n{END}{tail}")


def shown(known: dict[str, Any], language: str) -> str:
    """Return the whole section of a page."""
    folds = (_folded(known, fold, language) for fold in FOLDS)
    return "\n\n".join([counts_table(known), *(text for text in folds if text)])


def counts_table(known: dict[str, Any]) -> str:
    """Return the counts: a row for each area, under it one for each wheel whose numbers differ."""
    lines = ["| area | torch_npu | compared | equal | false yes | false no | other |", "|---|---|---|---|---|---|---|"]
    areas = list(dict.fromkeys(area for one in known.values() for area in one["counts"]))
    for area in reversed(areas):
        rows: dict[str, list[str]] = {}
        for version, one in known.items():
            found = one["counts"].get(area, {})
            numbers = (sum(found.values()), *(found.get(kind.value, 0) for kind in Kind))
            rows.setdefault(" | ".join(map(str, numbers)), []).append(version)
        lines += [f"| {area} | {', '.join(versions)} | {cells} |" for cells, versions in rows.items()]
    return "\n".join(lines)


def _folded(known: dict[str, Any], fold: Fold, language: str) -> str:
    """Return a folded table of reasons with the number for each wheel; empty if there are none."""
    rows: dict[str, dict[str, int]] = {}
    for version, one in known.items():
        for area, kind, reason, count in one["why"]:
            if kind == fold.kind.value and fold.area in ("", area):
                text = reason.replace(f": {REFUSES}", "")
                rows.setdefault(text if fold.area else f"{area}: {text}", {})[version] = count
    if not rows:
        return ""
    title = f"{fold.title[language]} ({len(rows)})"
    lines = [f"<details><summary>{title}</summary>", "", f"| | {' | '.join(known)} |", "|---" * (1 + len(known)) + "|"]
    for reason, by_version in sorted(rows.items()):
        lines.append(f"| {reason} | {' | '.join(str(by_version.get(version, 0)) for version in known)} |")
    return "\n".join([*lines, "", "</details>"])


def _short(one: Difference) -> str:
    # Single calls are too many to list, so the table has their reasons, each with its operator.
    if one.area in ("calls", "gradients"):
        operator = one.what.split()[1].partition("(")[0]
        return f"`{operator}`: {one.reason}"
    return f"`{one.what.strip()}`: {one.reason}" if one.reason else f"`{one.what.strip()}`"
