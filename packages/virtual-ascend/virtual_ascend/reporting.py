"""The messages that virtual-ascend writes to stderr. Each message is written once in a process.

They are sent to the logger `virtual_ascend`. If the user adds a handler to that logger, the handler gets the messages
instead of stderr. `logging.getLogger("virtual_ascend").setLevel("ERROR")` silences them.
"""

from __future__ import annotations

import contextlib
import logging
import sys

LOGGER = "virtual_ascend"

_said: set[str] = set()


def report(line: str) -> None:
    """Write an informational message. The same message is written only once."""
    _say(line, logging.INFO)


def warn(line: str) -> None:
    """Write a message that the user must read. The same message is written only once."""
    _say(line, logging.WARNING)


def _say(line: str, level: int) -> None:
    if line in _said:
        return
    _said.add(line)
    logger = logging.getLogger(LOGGER)
    if logger.handlers:
        logger.log(level, line)
    elif not logger.disabled and level >= (logger.level or logging.INFO) and sys.stderr is not None:
        # With a closed pipe or a full disk, nobody reads the line, and a failed write must never end a user's program.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"virtual-ascend: {line}\n")
            sys.stderr.flush()
