"""What verl-npu tells the user: one line on stderr, each line once in a process.

The lines go through the logger `verl_npu`. A user who gives that logger a handler gets them there and not on stderr;
`logging.getLogger("verl_npu").setLevel("ERROR")` silences them.
"""

from __future__ import annotations

import sys

LOGGER = "verl_npu"

_LONGEST = 16_000
"""Characters of a line that are shown; the rest repeats what somebody else has written."""

_said: set[str] = set()


def clean(text: str) -> str:
    """Return `text` in one line, with each character that is not printable as Python writes it in a literal.

    Paths, manifests and names in a source come from others. A terminal obeys escape sequences in them, a line break
    makes two lines of one, and invisible characters, those that turn the direction of writing among them, make one
    name look like another.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def shortened(text: str, most: int = _LONGEST) -> str:
    """Return `text`, cut if it repeats something very long."""
    return text if len(text) <= most else f"{text[:most]}…"


def report(line: str) -> None:
    """Say something that is as it should be, once."""
    _say(line, "INFO")


def warn(line: str) -> None:
    """Say something that the user has to know or to mend, once."""
    _say(line, "WARNING")


def _say(line: str, level: str) -> None:
    line = clean(shortened(line))
    if line in _said:
        return
    # Imported here: this module is part of every process, and most of them have nothing to say.
    import logging

    logger = logging.getLogger(LOGGER)
    number = logging.getLevelName(level)
    if logger.handlers:
        logger.log(number, line)
    elif not logger.disabled and number >= (logger.level or logging.INFO):
        _print(f"verl-npu: {line}\n")
    _said.add(line)


def _print(text: str) -> None:
    # Python sets sys.stderr to None where the process was started without one, and print() would then write to
    # stdout, which may be a program's data.
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        # A closed pipe or a full disk: there is nobody to tell, and a line of ours must never end a user's job.
        return
