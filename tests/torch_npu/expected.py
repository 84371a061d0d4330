"""What is known of torch_npu's own tests: `expected.json`, by file how many pass and skip, and which fail, each with
its reason; and the tables of it in the docs.

`python -m tests.torch_npu.expected FOLDER` takes up what `python -m tests.torch_npu … --save FOLDER` left, and makes
expected.json and the tables anew. A failure that no rule of `reasons` explains is an error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .reasons import Kind, reason

__all__ = ["EXPECTED", "File", "differences", "read", "summarised"]

EXPECTED = Path(__file__).with_name("expected.json")
DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN, END = "<!-- torch_npu: made by tests/torch_npu/expected.py -->", "<!-- end of torch_npu -->"
AREAS = {  # the first that fits
    "DTensor": ("distributed/_tensor/", "distributed/tensor/"),
    "FSDP": ("distributed/fsdp", "distributed/_composable/"),
    "hccl, meshes, hooks": ("distributed/", "npu/test_c10d.py"),
    "operators of torch_npu": ("custom_ops/",),
    "device": ("",),
}


@dataclass(slots=True)
class File:
    """How the tests of one file end; `failed` holds the reason of each."""

    passed: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def summarised(file: str, found: Iterable[dict[str, str]], unexplained: list[str] | None = None) -> File:
    """One file's tests; a test with parts fails where one of them does. What no rule explains is appended."""
    ends: dict[str, str] = {}
    out = File()
    for one in found:
        test, outcome = one["test"], one["outcome"]
        if outcome == "failed" and test not in out.failed:
            known = reason(file, test, one["reason"])
            if known is None and unexplained is not None:
                unexplained.append(f"{file}::{test}: {one['reason'][:200]}")
            out.failed[test] = f"{known.kind.value}: {known.why}" if known else "unexplained"
        if ends.get(test) != "failed":
            ends[test] = outcome
    counts = Counter(ends.values())
    out.passed, out.skipped = counts["passed"], counts["skipped"]
    out.failed = dict(sorted(out.failed.items()))
    return out


def read() -> dict[str, File]:
    """By file, what is expected."""
    files = json.loads(EXPECTED.read_text())["files"] if EXPECTED.is_file() else {}
    return {name: File(**content) for name, content in files.items()}


def differences(file: str, expected: File | None, found: File) -> list[str]:
    """One line for each test that ends otherwise than expected."""
    if expected is None:
        return [f"{file}: nothing is expected of it: run with --save, then python -m tests.torch_npu.expected"]
    lines = [f"{file}::{test} fails" for test in sorted(found.failed.keys() - expected.failed.keys())]
    lines += [f"{file}::{test} no longer fails" for test in sorted(expected.failed.keys() - found.failed.keys())]
    if (found.passed, found.skipped) != (expected.passed, expected.skipped) and not lines:
        lines.append(
            f"{file}: expected {expected.passed} passed and {expected.skipped} skipped, found {found.passed} and "
            f"{found.skipped}"
        )
    return lines


def _area(file: str) -> str:
    return next(area for area, starts in AREAS.items() if any(file.startswith(start) for start in starts))


def tables(files: dict[str, File]) -> str:
    """The counts by area, and what does not pass by reason, in Markdown."""
    counts = {area: Counter[str]() for area in AREAS}
    why: Counter[tuple[str, str]] = Counter()
    for name, file in files.items():
        counts[_area(name)] += Counter(passed=file.passed, skipped=file.skipped, failed=len(file.failed))
        for text in file.failed.values():
            why[_area(name), text] += 1
    lines = ["| area | passed | skipped by themselves | failed |", "|---|---|---|---|"]
    lines += [f"| {area} | {c['passed']} | {c['skipped']} | {c['failed']} |" for area, c in counts.items()]
    lines += ["", "| area | failed | reason |", "|---|---|---|"]
    order = {kind.value: index for index, kind in enumerate(Kind)}
    for (area, text), count in sorted(
        why.items(),
        key=lambda item: (list(AREAS).index(item[0][0]), order.get(item[0][1].split(":")[0], 99), -item[1]),
    ):
        lines.append(f"| {area} | {count} | {text} |")
    return "\n".join(lines)


def write(files: dict[str, File]) -> None:
    """Make expected.json and the tables in the docs anew."""
    content = {
        name: {"passed": file.passed, "skipped": file.skipped, "failed": file.failed}
        for name, file in sorted(files.items())
    }
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
    files = read()
    unexplained: list[str] = []
    for results in sorted(parser.parse_args().folder.glob("*.json")):
        saved = json.loads(results.read_text())
        files[saved["file"]] = summarised(saved["file"], saved["tests"], unexplained)
    if unexplained:
        sys.exit("\n".join(["tests/torch_npu/reasons.py explains not:", *unexplained]))
    write(files)
    total = sum((Counter(passed=f.passed, skipped=f.skipped, failed=len(f.failed)) for f in files.values()), Counter())
    print(f"{EXPECTED}: {len(files)} files, {dict(total)}")


if __name__ == "__main__":
    main()
