"""The known results of torch_npu's own tests, and their tables in the docs.

`expected.json` has for each file how many tests pass and skip, and which fail, each with its reason; and the same
under the torch_npu of a wheel. `python -m tests.torch_npu.expected FOLDER` takes the results that `python -m
tests.torch_npu … --save FOLDER` left, and rewrites expected.json and the tables; with --wheel, the results of a run
with --wheel. A failure that no rule of `reasons` explains is an error. Under the wheel only those failures are
explained that our own torch_npu passes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .reasons import Kind, reason

EXPECTED = Path(__file__).with_name("expected.json")
DOCS = Path(__file__).resolve().parents[4] / "docs" / "reference"
BOTH = "ours fails it as well"
BEGIN, END = "<!-- torch_npu: made by tests/torch_npu/expected.py -->", "<!-- end of torch_npu -->"
AREAS = {  # the first that fits
    "DTensor": ("distributed/_tensor/", "distributed/tensor/"),
    "FSDP": ("distributed/fsdp", "distributed/_composable/"),
    "hccl, meshes, hooks": ("distributed/", "npu/test_c10d.py"),
    "operators of torch_npu": ("custom_ops/",),
    "device": ("",),
}


@dataclass(slots=True)
class Ends:
    """The results of one file's tests; `failed` holds the reason of each."""

    passed: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class File(Ends):
    """The results with our own torch_npu, and with a wheel's, where that was run."""

    wheel: Ends | None = None


def summarised(
    file: str, found: Iterable[dict[str, str]], unexplained: list[str] | None = None, ours: Ends | None = None
) -> File:
    """Summarize one file's tests; a test with parts fails if one of them does.

    Failures that no rule explains are appended to `unexplained`. Given our own results in `ours`, these are a wheel's,
    and a test that fails with both has one reason.
    """
    ends: dict[str, str] = {}
    out = File()
    for one in found:
        test, outcome = one["test"], one["outcome"]
        if outcome == "failed" and test not in out.failed:
            known = reason(file, test, one["reason"], wheel=ours is not None)
            both = ours is not None and test in ours.failed
            if known is None and not both and unexplained is not None:
                unexplained.append(f"{file}::{test}: {one['reason'][:200]}")
            out.failed[test] = BOTH if both else f"{known.kind.value}: {known.why}" if known else "unexplained"
        if ends.get(test) != "failed":
            ends[test] = outcome
    counts = Counter(ends.values())
    out.passed, out.skipped = counts["passed"], counts["skipped"]
    out.failed = dict(sorted(out.failed.items()))
    return out


def read() -> dict[str, File]:
    """Return the expected results by file."""
    files = json.loads(EXPECTED.read_text())["files"] if EXPECTED.is_file() else {}
    return {name: _file(content) for name, content in files.items()}


def _file(content: dict[str, Any]) -> File:
    wheel = content.pop("wheel", None)
    return File(**content, wheel=None if wheel is None else Ends(**wheel))


def differences(file: str, expected: Ends | None, found: Ends) -> list[str]:
    """Return one line for each test with an unexpected result."""
    if expected is None:
        return [f"{file}: nothing is expected of it: run with --save, then python -m tests.torch_npu.expected"]
    lines = [f"{file}::{test} fails" for test in sorted(found.failed.keys() - expected.failed.keys())]
    lines += [f"{file}::{test} no longer fails" for test in sorted(expected.failed.keys() - found.failed.keys())]
    if (found.passed, found.skipped) != (expected.passed, expected.skipped) and not lines:
        lines.append(
            f"{file}: expected {expected.passed} passed and {expected.skipped} skipped; found {found.passed} and "
            f"{found.skipped}"
        )
    return lines


def _area(file: str) -> str:
    return next(area for area, starts in AREAS.items() if any(file.startswith(start) for start in starts))


def tables(files: dict[str, File]) -> str:
    """Return the counts by area, with ours and with the wheel, and the failures by reason, in Markdown."""
    lines = [
        "| area | torch_npu | passed | skipped by themselves | failed | of these with both |",
        "|---|---|---|---|---|---|",
    ]
    for area in AREAS:
        inside = [file for name, file in files.items() if _area(name) == area]
        lines.append(_row(area, "ours", inside))
        if under := [file.wheel for file in inside if file.wheel is not None]:
            missing = f", {len(under)} of {len(inside)} files" if len(under) < len(inside) else ""
            lines.append(_row(area, f"the wheel{missing}", under))
    lines += ["", "| area | torch_npu | failed | reason |", "|---|---|---|---|"]
    why: Counter[tuple[str, str, str]] = Counter()
    for name, file in files.items():
        why.update((_area(name), "ours", text) for text in file.failed.values())
        ends = file.wheel or Ends()
        why.update((_area(name), "the wheel", text) for text in ends.failed.values() if text != BOTH)
    order = {kind.value: index for index, kind in enumerate(Kind)}
    for (area, which, text), count in sorted(
        why.items(),
        key=lambda item: (
            list(AREAS).index(item[0][0]), item[0][1], order.get(item[0][2].split(":")[0], 99), -item[1], item[0][2]
        ),
    ):  # fmt: skip
        lines.append(f"| {area} | {which} | {count} | {text} |")
    return "\n".join(lines)


def _row(area: str, which: str, ends: Iterable[Ends]) -> str:
    ends = list(ends)
    failed = [text for one in ends for text in one.failed.values()]
    both = str(failed.count(BOTH)) if which != "ours" else ""
    passed, skipped = sum(one.passed for one in ends), sum(one.skipped for one in ends)
    return f"| {area} | {which} | {passed} | {skipped} | {len(failed)} | {both} |"


def write(files: dict[str, File]) -> None:
    """Rewrite expected.json and the tables in the docs."""
    content = {name: dataclasses.asdict(file) for name, file in sorted(files.items())}
    for each in content.values():
        if each["wheel"] is None:
            del each["wheel"]
    EXPECTED.write_text(json.dumps({"files": content}, indent=1) + "\n")
    for doc in ("virtual-ascend.md", "virtual-ascend.zh-CN.md"):
        text = (DOCS / doc).read_text()
        head, _, rest = text.partition(BEGIN)
        _, _, tail = rest.partition(END)
        (DOCS / doc).write_text(f"{head}{BEGIN}\n{tables(files)}\n{END}{tail}")


def main() -> None:
    """Take up a folder of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheel", action="store_true", help="the run was under the torch_npu of a wheel")
    asked = parser.parse_args()
    files = read()
    unexplained: list[str] = []
    for results in sorted(asked.folder.glob("*.json")):
        saved = json.loads(results.read_text())
        name = saved["file"]
        ours = files.get(name, File())
        if asked.wheel:
            found = summarised(name, saved["tests"], unexplained, ours)
            ours.wheel = Ends(found.passed, found.skipped, found.failed)
            files[name] = ours
        else:
            files[name] = summarised(name, saved["tests"], unexplained)
            files[name].wheel = ours.wheel
    if unexplained:
        sys.exit("\n".join(["tests/torch_npu/reasons.py explains not:", *unexplained]))
    write(files)
    total = sum((Counter(passed=f.passed, skipped=f.skipped, failed=len(f.failed)) for f in files.values()), Counter())
    print(f"{EXPECTED}: {len(files)} files, {dict(total)}")


if __name__ == "__main__":
    main()
