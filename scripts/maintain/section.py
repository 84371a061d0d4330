"""Helpers for programs that make pages, or the parts of pages between two markers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def replaced(text: str, begin: str, end: str, content: str) -> str:
    """Return `text` with `content` between the markers; raise ValueError if one is missing."""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"expected {begin} and {end} in the page")
    return f"{before}{begin}\n{content}\n{end}{after}"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = (headings, ["---"] * len(headings), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def options(description: str | None) -> argparse.ArgumentParser:
    """Return the options of a program that makes pages."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if a file is not up to date")
    return parser


def rewrite(made: Mapping[Path, str], check: bool) -> int:
    """Write the pages whose text has changed, or with `check` only name them; return the exit status."""
    old = [page for page, text in made.items() if not page.is_file() or page.read_text() != text]
    for page in old:
        if check:
            print(f"{page}: not up to date; run python {sys.argv[0]}", file=sys.stderr)
        else:
            page.write_text(made[page])
            print(f"{page}: rewritten")
    return int(check and bool(old))
