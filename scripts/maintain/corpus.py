"""Rehearses upstream's own launch scripts for NPUs at each revision, and records the results in docs/records.

    corpus.py --trees DIR --environments DIR --results FILE [--only TEXT] [--again failed] [--once] [--check]
              [--at-once N]

The DIR of trees has verl-<revision>/, and the DIR of environments has <revision>/bin/python. Results that are already
in FILE are not run again, so the program can be stopped and started at any time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.records import RECORDS
from rehearse import speaks_of_megatron

from verl_npu.pins import pins

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
LIST = HERE / "corpus.txt"
MAIN = list(pins())[-1]
FOLDERS = (".", "recipe", "verl/experimental")
"""The possible folders of a script in the list, because recipes moved between revisions."""


@dataclass(frozen=True)
class Case:
    """One script at one revision."""

    path: str
    revision: str
    arguments: tuple[str, ...]
    variables: dict[str, str]

    siblings: tuple[str, ...]
    """The names of all cases on its line of the list: the same script at other revisions."""

    @property
    def name(self) -> str:
        return f"{self.revision} {self.path}"


def cases() -> Iterator[Case]:
    """Yield the cases of the list."""
    for line in LIST.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        path, revisions, arguments, variables = [*map(str.strip, line.split("|")), "", ""][:4]
        given = dict(each.partition("=")[::2] for each in variables.split())
        names = tuple(f"{revision} {path}" for revision in revisions.split(","))
        for revision in revisions.split(","):
            yield Case(path, revision, tuple(arguments.split()), given, names)


def script_of(case: Case, trees: Path) -> tuple[Path, Path]:
    """Return the script and its tree. The script may not exist."""
    tree = trees / f"verl-{MAIN if case.revision == 'main' else case.revision}"
    found = [tree / folder / case.path for folder in FOLDERS]
    return next((path for path in found if path.is_file()), found[0]), tree


def judge(case: Case, trees: Path, environments: Path) -> dict[str, object]:
    """Run `lint` on one case, in the environment of its revision."""
    script, tree = script_of(case, trees)
    python = environments / case.revision / "bin" / "python"
    command = [str(python), "-m", "verl_npu", "lint", "--json", "--source", str(tree), str(script)]
    variables = os.environ | case.variables | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [*command, "--", *case.arguments], env=variables, capture_output=True, text=True, check=False
    )
    verdict = {0: "in order", 1: "refused", 2: "not judged"}.get(done.returncode, f"status {done.returncode}")
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        return {"script": case.path, "verdict": verdict, "error": (done.stderr.strip().splitlines() or [""])[-1]}
    findings = json.loads(done.stdout[done.stdout.index("{") :])["findings"]
    refused = [finding for finding in findings if finding["refused"]]
    said = "; ".join(f"{finding['subject']}: {finding['found']}" for finding in refused)
    return {"script": case.path, "verdict": verdict, "error": said, "findings": findings}


def rehearse(case: Case, trees: Path, environments: Path, output: Path) -> dict[str, object]:
    """Run `rehearse` on one case, in the environment of its revision."""
    script, tree = script_of(case, trees)
    python = environments / case.revision / "bin" / "python"
    if not script.is_file() or not python.exists():
        missing = script if not script.is_file() else python
        return {"script": case.path, "verdict": "not rehearsed", "error": f"there is no {missing.name} for it"}
    command = [str(python), "-m", "verl_npu", "rehearse", "--json", "--output", str(output), "--verl", str(tree)]
    command += [str(script), "--", *case.arguments]
    mindspeed = environments / case.revision / "mindspeed"
    variables = os.environ | case.variables | {"PYTHONPATH": str(PROJECT)}
    # If MindSpeed is installed, later revisions import it in each process, which takes a minute.
    if mindspeed.exists() and speaks_of_megatron(script.read_text(errors="replace")):
        variables["VERL_NPU_MINDSPEED"] = str(mindspeed.resolve())
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    try:
        return {**json.loads(done.stdout[done.stdout.index("{") :]), "script": case.path}
    except ValueError:
        lines = done.stderr.strip().splitlines() or ["no output"]
        return {"script": case.path, "verdict": "not rehearsed", "error": lines[-1], "status": done.returncode}


def rehearsed(results: dict[str, dict[str, object]]) -> list[dict[str, object]]:
    """Return a record for each line of the list: where it trained, or what stopped it at the last revision."""
    runs: list[dict[str, object]] = []
    lines = {case.siblings for case in cases()}
    for names in sorted(lines):
        known = [(name, results[name]) for name in names if name in results]
        if not known:
            continue
        name, result = next((each for each in known if each[1]["verdict"] == "trained"), known[-1])
        said = {"verdict": str(result["verdict"])}
        if result["verdict"] == "trained":
            said["seconds"] = f"{result.get('seconds', 0):.0f}"
        else:
            said["first error"] = _cell(_first_error(result))
        runs.append(_record(name, said))
    return runs


def _record(name: str, results: dict[str, str]) -> dict[str, object]:
    revision, path = name.split(" ", 1)
    return {"pin": revision, "job": path, "results": results}


def _first_error(result: dict[str, object]) -> str:
    failure = result.get("failure")
    if isinstance(failure, dict):
        return f"{failure['owner']}: {failure['error']}"
    return str(result.get("error", ""))


def _cell(text: str) -> str:
    """Return a text for a record, without the folders of this machine."""
    return re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+(?=[\w.+-])", "…/", " ".join(text.split()))[:200]


def linted(results: dict[str, dict[str, object]]) -> list[dict[str, object]]:
    """Return the results of `lint` for the list: a record with the count, and one for each refusal."""
    in_order = sum(result["verdict"] == "in order" for result in results.values())
    total = {"job": "all other scripts at each revision", "results": {"verdict": f"{in_order} in order"}}
    others = [(name, result) for name, result in results.items() if result["verdict"] != "in order"]
    return [
        total,
        *(_record(n, {"verdict": str(r["verdict"]), "why": _cell(str(r.get("error", "")))}) for n, r in others),
    ]


def write_records(name: str, runs: list[dict[str, object]]) -> None:
    """Replace the runs of one file of docs/records."""
    path = RECORDS / f"{name}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "runs": runs}, ensure_ascii=False, indent=1) + "\n")


def _wanted(case: Case, results: dict[str, dict[str, object]], asked: argparse.Namespace) -> bool:
    before = results.get(case.name)
    if asked.only not in case.name or (before and not (asked.again and before["verdict"] == asked.again)):
        return False
    known = [results[other]["verdict"] for other in case.siblings if other in results]
    return not (asked.once and "trained" in known)


def _save(results: dict[str, dict[str, object]], path: Path) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(results, indent=1))
    fresh.replace(path)


def main() -> int:
    """Rehearse the requested cases that have no result yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, required=True)
    parser.add_argument("--environments", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--only", default="", help="run only the cases whose name contains this text")
    parser.add_argument("--record", action="store_true", help="only record the results in FILE")
    parser.add_argument("--judged", type=Path, help="with --record: also record this file of --check")
    parser.add_argument("--check", action="store_true", help="only check the scripts with lint")
    parser.add_argument("--once", action="store_true", help="stop at the first revision of a line that trained")
    parser.add_argument("--again", default="", help="run the cases with this verdict again")
    parser.add_argument("--at-once", type=int, default=2, help="the number of cases that run at once (default 2)")
    asked = parser.parse_args()
    results = json.loads(asked.results.read_text()) if asked.results.is_file() else {}
    if asked.record:
        write_records("rehearsals", rehearsed(results))
        if asked.judged:
            write_records("lint", linted(json.loads(asked.judged.read_text())))
        return 0
    lines: dict[tuple[str, ...], list[Case]] = {}
    for case in cases():
        lines.setdefault(case.siblings, []).append(case)
    lock = Lock()

    def run_line(line: list[Case]) -> None:
        for case in line:
            if not _wanted(case, results, asked):
                continue
            started = time.monotonic()
            if asked.check:
                result = judge(case, asked.trees, asked.environments)
            else:
                result = rehearse(case, asked.trees, asked.environments, asked.results.parent / "runs")
            with lock:
                results[case.name] = {**result, "whole_seconds": round(time.monotonic() - started, 1)}
                _save(results, asked.results)
            failure = result.get("failure") or {}
            said = failure.get("error", "") if isinstance(failure, dict) else ""
            print(f"{result['verdict']:14} {case.name}: {said or result.get('error', '')}"[:300], flush=True)

    # For half of its time a rehearsal is one process that imports modules, and a second core would be idle.
    with ThreadPoolExecutor(asked.at_once) as pool:
        list(pool.map(run_line, lines.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
