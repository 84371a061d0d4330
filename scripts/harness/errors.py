"""The errors that end a run with one line."""

from __future__ import annotations


class BadInput(Exception):
    """The request cannot be fulfilled. The message explains what was expected, what was found, and how to fix it."""


class RunFailed(Exception):
    """The run started, but did not succeed."""


class Stopped(Exception):
    """A signal stopped the run. `status` is the exit status that a shell reports for that signal."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__("interrupted")
