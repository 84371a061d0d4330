"""What the virtual Ascend tells the user: one line on stderr, each line once in a process.

The lines go through the logger `virtual_ascend`. A user who gives that logger a handler gets them there and not on
stderr; `logging.getLogger("virtual_ascend").setLevel("ERROR")` silences them.
"""

from __future__ import annotations

import contextlib
import logging
import sys

LOGGER = "virtual_ascend"

_said: set[str] = set()


def report(line: str) -> None:
    """Say something that is as it should be, once."""
    _say(line, logging.INFO)


def warn(line: str) -> None:
    """Say something that the user has to know or to mend, once."""
    _say(line, logging.WARNING)


def _say(line: str, level: int) -> None:
    if line in _said:
        return
    _said.add(line)
    logger = logging.getLogger(LOGGER)
    if logger.handlers:
        logger.log(level, line)
    elif not logger.disabled and level >= (logger.level or logging.INFO) and sys.stderr is not None:
        # A closed pipe or a full disk: there is nobody to tell, and a line of ours must never end a user's program.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"virtual-ascend: {line}\n")
            sys.stderr.flush()
