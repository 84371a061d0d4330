"""Output of the commands. All of their text goes through this module, which escapes control characters."""

from __future__ import annotations

import io
import os
import select
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence

import click

from .. import progress
from ..language import gettext as _
from ..language import translate
from ..reporting import clean, shortened

_WIDEST = 100
"""The maximum width of running text, in columns. Longer lines are hard to read on any terminal."""
_LONGEST_ERROR = 2000
_CLOSING = "，。；：！？、）》」』”】…,.;:!?)]}"
"""Characters that must not begin a line."""
_OPENING = "（《「『“【([{"
"""Characters that must not end a line."""
_DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


class Styled(str):
    """Text whose unprintable characters are already escaped, and whose terminal styles all come from verl-npu."""

    __slots__ = ()


def styled(text: str, style: str) -> Styled:
    """Return `text` in a style, with unprintable characters escaped. The style is a color, `bold`, or `dim`; an empty
    string leaves the text plain."""
    shown = clean(translate(text))
    if style in ("bold", "dim"):
        return Styled(click.style(shown, bold=style == "bold" or None, dim=style == "dim" or None))
    return Styled(click.style(shown, fg=style or None))


def line(*parts: str) -> None:
    """Print one line. In parts that are not `Styled`, unprintable characters are escaped."""
    _print("".join(part if isinstance(part, Styled) else clean(translate(part)) for part in parts))


def echo(text: str = "") -> None:
    """Print `text` as one line. Unprintable characters are escaped."""
    _print(clean(translate(text)))


def paragraph(text: str, indent: str = "", label: str = "") -> None:
    """Print running text, wrapped at spaces. Each line starts with `indent`; if `label` is given, the first line
    starts with `label` instead.

    A word that is longer than the line, such as a path, is not broken, so that the user can copy it.
    """
    for each in wrapped(clean(translate(text)), min(width(), _WIDEST), translate(label) or indent, indent):
        _print(each)


def wrapped(text: str, columns: int, first: str = "", others: str = "") -> list[str]:
    """Wrap text at spaces and between Chinese characters. Return the lines, including their indents.

    The first line starts with `first`, and the other lines start with `others`.
    """
    if cells(text) != len(text) or cells(first) != len(first):
        return _wrapped_wide(text, columns, first, others)
    return textwrap.wrap(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _wrapped_wide(text: str, columns: int, first: str, others: str) -> list[str]:
    lines, line, used = [], first, cells(first)
    empty = True
    for atom in _atoms(text):
        if not empty and used + cells(atom.rstrip()) > columns:
            lines.append(line.rstrip())
            line, used, empty = others, cells(others), True
        if empty and atom.isspace():
            continue
        line, used, empty = line + atom, used + cells(atom), False
    return lines if empty else [*lines, line.rstrip()]


def _atoms(text: str) -> Iterator[str]:
    """Split text into the parts that must not be broken: words, spaces, and wide characters with their punctuation."""
    atom = ""
    for char in text:
        ends = char in _CLOSING and bool(atom) and not atom.isspace()
        joined = ends or (bool(atom) and (atom[-1] in _OPENING or _kind(atom[-1]) == _kind(char) != "wide"))
        if atom and not joined:
            yield atom
            atom = ""
        atom += char
    if atom:
        yield atom


def _kind(char: str) -> str:
    return "blank" if char.isspace() else "wide" if _is_wide(char) else "word"


def cells(text: str) -> int:
    """Return the number of terminal columns that `text` occupies. A Chinese character occupies two columns."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 2 if _is_wide(char) else 1 for char in text)


def _is_wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in "WF"


def padded(text: str, columns: int) -> str:
    """Return `text` in the current language, padded with spaces to `columns`."""
    text = translate(text)
    return text + " " * (columns - cells(text))


def table(rows: Sequence[tuple[str, ...]], styles: Sequence[str], indent: str = "") -> None:
    """Print rows as aligned columns.

    `styles` contains one style for each row, which applies to the row's second cell. Text in the last cell is wrapped
    within its column.
    """
    shown = [tuple(clean(translate(cell)) for cell in row) for row in rows]
    widths = [max(map(cells, column)) for column in list(zip(*shown, strict=True))[:-1]]
    left = len(indent) + sum(widths) + 2 * len(widths)
    for row, style in zip(shown, styles, strict=True):
        columns = [padded(cell, space) for cell, space in zip(row[:-1], widths, strict=True)]
        if len(columns) > 1:
            columns[1] = styled(columns[1], style)
        room = max(min(width(), _WIDEST) - left, 20)
        first, *rest = wrapped(row[-1], room) or [""]
        _print((indent + "  ".join([*columns, first])).rstrip())
        for each in rest:
            _print(" " * left + each)


def trouble(error: Exception | None) -> None:
    """Print an error that does not end the command, followed by an empty line. If the error is None, print
    nothing."""
    if error is not None:
        paragraph(str(error), label=_("WARNING: "), indent="  ")
        echo()


def block(text: str) -> None:
    """Print multi-line text, such as a diff, in color. Unprintable characters other than tabs are escaped."""
    for each in text.splitlines():
        shown = "\t".join(map(clean, each.split("\t")))
        _print(click.style(shown, fg=_DIFF_COLOURS.get(shown[:1])))


def fail(message: str) -> None:
    """Print an error on stderr."""
    note(message)


def note(message: str) -> None:
    """Print one line on stderr. A very long line is cut."""
    _print(f"verl-npu: {clean(shortened(translate(message), _LONGEST_ERROR))}", err=True)


class _Unbreakable(io.TextIOWrapper):
    """A stream that ignores further output once its reader is gone, so that `| head` does not end a command
    halfway."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            self._lose()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            self._lose()

    def _lose(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def ignore_broken_pipes() -> None:
    """If the reader of the output is gone, discard the output instead of ending the command."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            raw = open(stream.fileno(), "wb", closefd=False)  # noqa: SIM115 - it stays open
        except (AttributeError, OSError, ValueError):  # the stream is closed
            continue
        stream.flush()
        made = _Unbreakable(raw, stream.encoding, stream.errors, line_buffering=stream.line_buffering)
        setattr(sys, name, made)


def is_read() -> bool:
    """Return whether standard output may still have a reader. There is no reader if the other end of a pipe is
    closed."""
    try:
        asked = select.poll()
        asked.register(sys.stdout.fileno(), 0)
        return not any(event & select.POLLERR for _descriptor, event in asked.poll(0))
    except (AttributeError, OSError, ValueError):
        return True


def width() -> int:
    """Return the width of the terminal in columns: COLUMNS if it is set, otherwise the terminal's own width, otherwise
    80. The result is at least 40."""
    return max(shutil.get_terminal_size().columns, 40)


def _print(text: str, err: bool = False) -> None:
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    # An ASCII terminal shows other characters as escapes instead of raising an error.
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    with progress.suspended():
        click.echo(shown, err=err, color=False if os.environ.get("NO_COLOR") else None)
