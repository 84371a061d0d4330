"""Reads the outcome of each test from the report that pytest's `--junitxml` writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

__all__ = ["cases"]


def cases(report: Path) -> Iterator[tuple[str, str, ElementTree.Element | None]]:
    """Yield the name and outcome (passed, failure, error, skipped) of each test, and its element if it did not
    pass."""
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        yield f"{case.get('classname')}::{case.get('name')}", bad.tag if bad is not None else "passed", bad
