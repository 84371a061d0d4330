"""Marks for the Ascend profiler. There is no such profiler here, so marks are accepted and ignored."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TypeVar, cast

__all__ = ["mstx"]

F = TypeVar("F", bound=Callable[..., object])


def _without_errors(function: F) -> F:
    """Make a failing call print its error and return None, as in torch_npu. MindSpeed ends ranges without a number."""

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            print(f"Call {function.__name__} failed. Exception: {error}", file=sys.stderr)
            return None

    return cast(F, call)


class mstx:
    """The class `torch_npu.npu.mstx.mstx`. Its functions are static methods."""

    @staticmethod
    @_without_errors
    def mark(message: str, stream: object = None, domain: str = "default") -> None:
        """Accept a mark for the profiler. Nothing is recorded."""

    @staticmethod
    @_without_errors
    def range_start(message: str, stream: object = None, domain: str = "default") -> int:
        """Accept the start of a profiler range, and return 0, as torch_npu does if no profiler is running."""
        return 0

    @staticmethod
    @_without_errors
    def range_end(range_id: int, domain: str = "default") -> None:
        """Accept the end of a profiler range. Nothing is recorded."""

    @staticmethod
    def mstx_range(message: str, stream: object = None, domain: str = "default") -> _Range:
        """Return a profiler range that can be used as a decorator or as a context manager. Nothing is recorded."""
        return _Range()


class _Range:
    def __enter__(self) -> _Range:
        return self

    def __exit__(self, *_error: object) -> None:
        return None

    def __call__(self, function: F) -> F:
        return function
