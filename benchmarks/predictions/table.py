"""Checks the register of predictions in this folder, and prints it: predicted, measured, error, and whether the
prediction was committed first.

Run `python benchmarks/predictions/table.py` in a clone with history. Each JSON file is one prediction of
`verl-npu plan`. It is committed before the measured figure is read, and a later commit adds the figure with its
source. A measurement is a peak, or whether the job ran on its NPUs, or both. Memory is in GiB, as in verl's
perf/max_memory_allocated_gb. A prediction that is not blind, because the figure had been seen, does not count as one.
`again-` is such a prediction, made after a method was corrected. SIMULATED.
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
    """Describe the error in an entry. Return an empty string if the entry is valid."""
    for name in TEXTS:
        if not (isinstance(entry.get(name), str) and entry[name]):
            return f"{name}: expected a text; found {entry.get(name)!r}"
    if not isinstance(entry.get("blind"), bool):
        return f"blind: expected true or false; found {entry.get('blind')!r}"
    for name, kinds in PREDICTED.items():
        if not isinstance(entry.get("predicted", {}).get(name), kinds):
            return f"predicted.{name}: expected {kinds}; found {entry.get('predicted', {}).get(name)!r}"
    measured = entry.get("measured", "missing")
    if measured is None:
        return ""
    if not (isinstance(measured, dict) and measured.get("source")):
        return f"measured: expected null or an object with a source; found {measured!r}"
    if not isinstance(measured.get("gib"), float | int | None):
        return f"measured.gib: expected a number or null; found {measured.get('gib')!r}"
    if measured.get("verdict") not in ("fits", "does not fit", None):
        return f"measured.verdict: expected fits or does not fit; found {measured.get('verdict')!r}"
    if measured.get("gib") and not near(entry) and not measured.get("miss"):
        return "measured.miss: expected a text, because the prediction is wrong; found none"
    return ""


def near(entry: Mapping[str, Any]) -> bool:
    """Return whether a predicted peak is as near to the measured one as the goal asks."""
    peak, figure = entry["predicted"]["peak_gib"], entry["measured"]["gib"]
    return bool(abs(peak - figure) <= max(NEAR_GIB, NEAR * figure))


def order(path: Path, entry: Mapping[str, Any]) -> str:
    """Describe, according to git's history, whether a prediction is older than its figure and unchanged."""
    first = found = ""
    for commit in _git("log", "--reverse", "--format=%h", "--", path.name).split():
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
    return subprocess.run(["git", *words], cwd=HERE, stdout=subprocess.PIPE, text=True, check=False).stdout


def main() -> int:
    """Print the table, and return 1 if an entry is malformed, or if a figure was there first."""
    failed, low = False, 0
    peaks: list[bool] = []
    classes: list[bool] = []
    again: list[bool] = []
    print("| prediction | GiB | measured | error | near | fits | ran | first |\n|---|---|---|---|---|---|---|---|")
    for path in sorted(HERE.glob("*.json")):
        entry = json.loads(path.read_text())
        if said := wrong(entry):
            print(f"{path.name}: {said}", file=sys.stderr)
            failed = True
            continue
        came, predicted, measured = order(path, entry), entry["predicted"], entry["measured"] or {}
        failed |= came.startswith(("both", "changed"))
        blind = entry["blind"] and " before " in came
        figure, ran = measured.get("gib"), measured.get("verdict")
        cells = ["", "", ""]
        if figure:
            error = predicted["peak_gib"] / figure - 1
            cells = [f"{figure:.2f}", f"{error:+.1%}", "yes" if near(entry) else "no"]
            peaks += [near(entry)] * blind
            again += [near(entry)] * path.name.startswith("again-")
            low += blind and error < LEAST
        if ran:
            classes += [ran == predicted["verdict"]] * blind
        shown = [{"fits": "yes", "does not fit": "no"}.get(each, "") for each in (predicted["verdict"], ran)]
        came += "" if entry["blind"] else ", not blind"
        print("|", " | ".join((path.stem, f"{predicted['peak_gib']:.2f}", *cells, *shown, came)), "|")
    print(f"\nblind peaks: {sum(peaks)} of {len(peaks)} within {NEAR_GIB} GiB or {NEAR:.0%}; {low} over 15 % too low")
    print(f"blind verdicts: {sum(classes)} of {len(classes)} right")
    print(f"again, after a method was corrected, and not blind: {sum(again)} of {len(again)} peaks")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
