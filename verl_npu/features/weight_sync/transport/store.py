"""The store that carries the messages of a group: what is used of torch's stores, and what their errors say."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

__all__ = ["Store", "first_line"]


class Store(Protocol):
    """A store of torch.distributed. Each method raises RuntimeError if the process that serves it is gone."""

    def set(self, key: str, value: bytes) -> object:
        """Put a value under a key."""
        ...

    def get(self, key: str) -> bytes:
        """Return the value of a key, once there is one."""
        ...

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return the values of several keys."""
        ...

    def wait(self, keys: list[str], timeout: timedelta) -> object:
        """Return once all keys have values. Raises RuntimeError after the timeout."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys have values."""
        ...

    def delete_key(self, key: str) -> object:
        """Remove a key."""
        ...


def first_line(error: Exception) -> str:
    """Return what an error says, without the native frames that torch appends."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
