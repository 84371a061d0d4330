"""The store that carries the messages of a group: what is used of torch's stores, and what their errors say."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

__all__ = ["Secret", "SignedStore", "Store", "first_line"]

_HASH = "sha256"
_SIGNATURE = hashlib.sha256().digest_size


class Store(Protocol):
    """A store of torch.distributed. Each method raises RuntimeError if the process that serves it is gone."""

    def set(self, key: str, value: bytes) -> object:
        """Put a value under a key."""
        ...

    def get(self, key: str) -> bytes:
        """Return the value of a key, once there is one."""
        ...

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Put a value under a key that has the expected one, or none if that is empty; return what is there then."""
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


@dataclass(frozen=True, slots=True)
class Secret:
    """What the ranks of a group know and nobody else does. Each use has a key of its own that is derived from it."""

    value: bytes

    def __repr__(self) -> str:
        return "Secret(...)"  # it must not get into a log

    def derived(self, use: str) -> bytes:
        """Return 32 bytes for one use, from which neither the secret nor those of another use can be found."""
        return hmac.digest(self.value, use.encode(), _HASH)


class SignedStore:
    """A store in which each value carries a signature that only ranks of the group can make.

    torch's TCPStore believes everybody who connects to it. Here a value that a stranger wrote, or that was signed
    for another key, is as if it were not there.
    """

    def __init__(self, store: Store, secret: Secret) -> None:
        self.inner = store
        """The store itself, for torch, which puts values of its own there."""
        self._key = secret.derived("messages")

    def set(self, key: str, value: bytes) -> None:
        """Put a value under a key."""
        self.inner.set(key, self._signature(key, value) + value)

    def set_once(self, key: str, value: bytes) -> bytes:
        """Put a value under a key unless a rank of the group has put one there; return what is there then."""
        signed, known = self._signature(key, value) + value, b""
        while True:
            there = bytes(self.inner.compare_set(key, known, signed))
            found = self._checked(key, there)
            if found is not None:
                if there == signed:
                    # Nobody replaces it now. compare_set alone does not wake who waits for the key under torch 2.5.
                    self.inner.set(key, signed)
                return found
            # A stranger's value, to be replaced; if it is gone meanwhile, the store returns what was expected.
            known = b"" if there == known else there

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of keys that have one; None for a value that is not signed by a rank of the group."""
        values = self.inner.multi_get(list(keys))
        return [self._checked(key, bytes(value)) for key, value in zip(keys, values, strict=True)]

    def find(self, key: str) -> bytes | None:
        """Return the value of a key now; None if it has none, or one that is not signed by a rank of the group."""
        return self.read([key])[0] if self.inner.check([key]) else None

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Return once all keys have values, signed or not. Raises RuntimeError after the timeout."""
        self.inner.wait(list(keys), timeout)

    def delete_key(self, key: str) -> None:
        """Remove a key."""
        self.inner.delete_key(key)

    def _signature(self, key: str, value: bytes) -> bytes:
        # A key holds no zero byte, so no other key and value give the same text.
        return hmac.digest(self._key, key.encode() + b"\0" + value, _HASH)

    def _checked(self, key: str, signed: bytes) -> bytes | None:
        signature, value = signed[:_SIGNATURE], signed[_SIGNATURE:]
        return value if hmac.compare_digest(signature, self._signature(key, value)) else None


def first_line(error: Exception) -> str:
    """Return what an error says, without the native frames that torch appends."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
