"""Checks the register of predictions in this folder, and prints it: predicted, measured, error, and whether the
prediction was committed first.

Run `python benchmarks/predictions/table.py` in a clone with history. Each JSON file is one prediction of
`verl-npu plan`. It is committed before the measured figure is read, and a later commit adds the figure with its
source. Memory is in GiB, as in verl's perf/max_memory_allocated_gb. SIMULATED.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NEAR_GIB, NEAR, LEAST = 1.0, 0.05, -0.15
"""The goal: within 1 GiB or 5 %, and never more than 15 % too low."""
TEXTS = ("job", "command", "verl", "machine", "metric", "known")
PREDICTED = {"peak_gib": (float, int), "peaks_gib": dict, "seconds": list, "verdict": str}


def wrong(entry: Mapping[str, Any]) -> str:
    """Return what is wrong with an entry. Empty if nothing is."""
    for name in TEXTS:
        if not (isinstance(entry.get(name), str) and entry[name]):
            return f"{name}: expected a text; found {entry.get(name)!r}"
    if not isinstance(entry.get("blind"), bool):
        return f"blind: expected true or false; found {entry.get('blind')!r}"
    if entry.get("kind") not in ("peak", "class"):
        return f"kind: expected peak or class; found {entry.get('kind')!r}"
    for name, kinds in PREDICTED.items():
        if not isinstance(entry.get("predicted", {}).get(name), kinds):
            return f"predicted.{name}: expected {kinds}; found {entry.get('predicted', {}).get(name)!r}"
    measured = entry.get("measured", "missing")
    if measured is not None and not (isinstance(measured, dict) and measured.get("source")):
        return f"measured: expected null or an object with a source; found {measured!r}"
    if measured and entry["kind"] == "peak" and not isinstance(measured.get("gib"), float | int | None):
        return f"measured.gib: expected a number or null; found {measured.get('gib')!r}"
    if measured and entry["kind"] == "class" and measured.get("verdict") not in ("fits", "does not fit", None):
        return f"measured.verdict: expected fits or does not fit; found {measured.get('verdict')!r}"
    return ""


def order(path: Path, entry: Mapping[str, Any]) -> str:
    """Tell from git's history whether the prediction came before the figure, and was not changed with or after it."""
    text = _git("log", "--reverse", "--format=%h", "--", str(path))
    first = found = ""
    for commit in text.split():
        shown = json.loads(_git("show", f"{commit}:./{path.name}") or "{}")
        if not first and shown.get("predicted"):
            first = commit
            if shown["predicted"] != entry["predicted"]:
                return f"changed after {commit}"
        if not found and shown.get("measured"):
            found = commit
    if not first:
        return "not committed"
    if found == first:
        return f"both in {first}"
    return f"{first} before {found}" if found else f"{first}, open"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=HERE, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout


def row(entry: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return the predicted and the measured value, the error, and the judgement."""
    predicted, measured = entry["predicted"], entry["measured"] or {}
    if entry["kind"] == "class":
        found = measured.get("verdict") or "-"
        return (
            predicted["verdict"],
            found,
            "",
            "" if found == "-" else "yes" if found == predicted["verdict"] else "no",
        )
    peak, figure = predicted["peak_gib"], measured.get("gib")
    if figure is None:
        return f"{peak:.2f}", "none published" if entry["measured"] else "-", "", ""
    near = abs(peak - figure) <= max(NEAR_GIB, NEAR * figure)
    return f"{peak:.2f}", f"{figure:.2f}", f"{peak / figure - 1:+.1%}", "yes" if near else "no"


def main() -> int:
    """Print the table, and return 1 if an entry is malformed, or if a figure was there first."""
    failed, judged, low = False, [], 0
    print("| prediction | kind | predicted | measured | error | near | first |\n|---|---|---|---|---|---|---|")
    for path in sorted(HERE.glob("*.json")):
        entry = json.loads(path.read_text())
        if said := wrong(entry):
            print(f"{path.name}: {said}", file=sys.stderr)
            failed = True
            continue
        came, cells = order(path, entry), row(entry)
        came += "" if entry["blind"] else ", not blind"
        failed |= came.startswith(("both", "changed"))
        print("|", " | ".join((path.stem, entry["kind"], *cells, came)), "|")
        if cells[3] and entry["blind"]:
            judged.append((entry["kind"], cells[3] == "yes"))
            low += bool(cells[2]) and entry["predicted"]["peak_gib"] / entry["measured"]["gib"] - 1 < LEAST
    for kind in ("peak", "class"):
        of_kind = [near for each, near in judged if each == kind]
        print(f"\n{kind}, blind: {sum(of_kind)} of {len(of_kind)} right")
    print(f"more than {-LEAST:.0%} too low: {low}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
