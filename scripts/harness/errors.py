"""Errors that end a run with one clear line."""

from __future__ import annotations


class BadInput(Exception):
    """What was asked for cannot be done: the message says what was expected, what was found, and the fix."""


class RunFailed(Exception):
    """The run started and did not do what it should."""


class Stopped(Exception):
    """A signal came; `status` is the exit status that says so, as shells do."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__("interrupted")
