"""What verl-npu tells the user: one line on stderr, each line once in a process.

The lines go through the logger `verl_npu`. A user who gives that logger a handler gets them there and not on stderr;
`logging.getLogger("verl_npu").setLevel("ERROR")` silences them.
"""

from __future__ import annotations

import sys

LOGGER = "verl_npu"

_said: set[str] = set()


def report(line: str) -> None:
    """Say something that is as it should be, once."""
    _say(line, "INFO")


def warn(line: str) -> None:
    """Say something that the user has to know or to mend, once."""
    _say(line, "WARNING")


def _say(line: str, level: str) -> None:
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
