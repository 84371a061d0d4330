"""Messages to the user: lines on stderr. A process prints each line only once.

The lines go through the logger `verl_npu`. If the user gives that logger a handler, the lines go there and not to
stderr. `logging.getLogger("verl_npu").setLevel("ERROR")` turns them off.
"""

from __future__ import annotations

import sys

LOGGER = "verl_npu"

_LONGEST = 16_000
"""The maximum number of characters that are shown of a line. Longer lines only contain text that others wrote."""

_said: set[str] = set()


def clean(text: str) -> str:
    """Return `text` as one line. Unprintable characters are escaped as in a Python literal.

    Paths, manifests, and names in source are untrusted. A terminal would interpret escape sequences in them, and a
    line break would split the line. Invisible characters, such as those that reverse the direction of writing, can
    disguise a name.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def shortened(text: str, most: int = _LONGEST) -> str:
    """Return `text`, truncated to `most` characters if it is longer."""
    return text if len(text) <= most else f"{text[:most]}…"


def report(line: str) -> None:
    """Print a line of information, unless this process has already printed it."""
    _say(line, "INFO")


def warn(line: str) -> None:
    """Print a warning, unless this process has already printed it. Use warnings only for messages that the user must
    know about or act on."""
    _say(line, "WARNING")


def _say(line: str, level: str) -> None:
    line = clean(shortened(line))
    if line in _said:
        return
    # Imported here, because every process loads this module and most of them print nothing.
    import logging

    logger = logging.getLogger(LOGGER)
    number = logging.getLevelName(level)
    if logger.handlers:
        logger.log(number, line)
    elif not logger.disabled and number >= (logger.level or logging.INFO):
        _print(f"verl-npu: {line}\n")
    _said.add(line)


def _print(text: str) -> None:
    # Python sets sys.stderr to None in a process that was started without one. print() would then write to stdout,
    # which may carry a program's data.
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        # A closed pipe or a full disk leaves nobody to tell, and a message must never end a user's job.
        return
