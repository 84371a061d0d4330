"""Reads the parts of a Markdown page for tests of the documents."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class Fence:
    """A fenced block: the word after its opening fence, and its text without a list's indentation."""

    language: str
    text: str


def fences(page: str) -> list[Fence]:
    """Return the fenced blocks of a page, in order."""
    return [block for block, _ in _parts(page) if block is not None]


def outside_of_fences(page: str) -> list[str]:
    """Return the lines of a page outside of fenced blocks."""
    return [line for block, lines in _parts(page) if block is None for line in lines]


def _parts(page: str) -> list[tuple[Fence | None, list[str]]]:
    # Every second part is inside a fence, because fences are always closed.
    parts: list[tuple[Fence | None, list[str]]] = []
    language: str | None = None
    lines: list[str] = []
    for line in page.splitlines():
        if not line.lstrip().startswith("```"):
            lines.append(line)
            continue
        block = None if language is None else Fence(language, textwrap.dedent("\n".join([*lines, ""])))
        parts.append((block, lines))
        language = line.strip().removeprefix("```") if language is None else None
        lines = []
    if language is not None:
        raise ValueError(f"a fenced block of {language!r} is not closed")
    return [*parts, (None, lines)]
