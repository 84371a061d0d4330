"""What tests of the documents read in a Markdown page."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

__all__ = ["Fence", "fences", "outside_of_fences"]


@dataclass(frozen=True)
class Fence:
    """A fenced block: the word after its opening fence, and its text without the indentation of a list."""

    language: str
    text: str


def fences(page: str) -> list[Fence]:
    """The fenced blocks of a page, in order."""
    return [block for block, _ in _parts(page) if block is not None]


def outside_of_fences(page: str) -> list[str]:
    """The lines of a page that are in no fenced block."""
    return [line for block, lines in _parts(page) if block is None for line in lines]


def _parts(page: str) -> list[tuple[Fence | None, list[str]]]:
    # Odd ones are inside: the pages have no unclosed fence, which would also break them on GitHub.
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
