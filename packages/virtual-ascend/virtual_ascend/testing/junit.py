"""Reads the outcome of each test from the report that pytest's `--junitxml` writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree


def cases(report: Path) -> Iterator[tuple[str, str, ElementTree.Element | None]]:
    """Yield the name and the outcome (passed, failure, error, skipped) of each test, and the test's XML element if the
    test did not pass."""
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        yield f"{case.get('classname')}::{case.get('name')}", bad.tag if bad is not None else "passed", bad
