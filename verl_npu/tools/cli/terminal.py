"""What the commands print. All text goes to the terminal through here, and what could command it is written out."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

import click

from ...reporting import clean, shortened
from .. import progress

_WIDEST = 100
"""Columns of running text: longer lines are hard to read, however wide the terminal is."""
_LONGEST_ERROR = 2000
_OF_A_DIFF = {"+": "green", "-": "red", "@": "cyan"}


class Styled(str):
    """A text that is clean, and has the colours that we gave it."""

    __slots__ = ()


def styled(text: str, style: str) -> Styled:
    """Return `text`, cleaned, in a colour, or `bold`, or `dim`; an empty style leaves it plain."""
    if style in ("bold", "dim"):
        return Styled(click.style(clean(text), bold=style == "bold" or None, dim=style == "dim" or None))
    return Styled(click.style(clean(text), fg=style or None))


def line(*parts: str) -> None:
    """Print one line; what is not styled is cleaned."""
    _print("".join(part if isinstance(part, Styled) else clean(part) for part in parts))


def echo(text: str = "") -> None:
    """Print one line, cleaned."""
    _print(clean(text))


def paragraph(text: str, indent: str = "", label: str = "") -> None:
    """Print running text broken at blanks, below `indent`; `label` stands before its first line.

    A name that is longer than the line is not broken: it would be of no use to copy.
    """
    lines = textwrap.wrap(
        clean(text),
        min(width(), _WIDEST),
        initial_indent=label or indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for each in lines:
        _print(each)


def table(rows: Sequence[tuple[str, ...]], styles: Sequence[str], indent: str = "") -> None:
    """Print rows of cells as aligned columns, each row in its style for the second cell; the last cell is broken at
    blanks and goes on below itself."""
    columns = list(zip(*rows, strict=True))
    widths = [max(len(clean(cell)) for cell in column) for column in columns[:-1]]
    left = len(indent) + sum(widths) + 2 * len(widths)
    for row, style in zip(rows, styles, strict=True):
        cells = [clean(cell).ljust(space) for cell, space in zip(row[:-1], widths, strict=True)]
        if len(cells) > 1:
            cells[1] = styled(cells[1], style)
        room = max(min(width(), _WIDEST) - left, 20)
        first, *rest = textwrap.wrap(clean(row[-1]), room, break_long_words=False, break_on_hyphens=False) or [""]
        _print((indent + "  ".join([*cells, first])).rstrip())
        for each in rest:
            _print(" " * left + each)


def trouble(error: Exception | None) -> None:
    """Print an error that does not end the command, if there is one, and an empty line."""
    if error is not None:
        paragraph(str(error), label="WARNING: ", indent="  ")
        echo()


def block(text: str) -> None:
    """Print a text of several lines, a diff, in colours; each line is cleaned, and tabs stay."""
    for each in text.splitlines():
        shown = "\t".join(map(clean, each.split("\t")))
        _print(click.style(shown, fg=_OF_A_DIFF.get(shown[:1])))


def fail(message: str) -> None:
    """Print an error on stderr as one line, which is cut if it repeats something very long."""
    _print(f"verl-npu: {clean(shortened(message, _LONGEST_ERROR))}", err=True)


def width() -> int:
    """Return the columns of the terminal: what COLUMNS says, else what it has itself, else 80."""
    return max(shutil.get_terminal_size().columns, 40)


def _print(text: str, err: bool = False) -> None:
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    # An ASCII terminal shows what it lacks as an escape instead of ending us.
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    with progress.standing_aside():
        click.echo(shown, err=err, color=False if os.environ.get("NO_COLOR") else None)
