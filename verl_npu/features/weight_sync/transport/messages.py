"""Messages between the ranks of a group, by topic, through the store that rank 0 serves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

from ....errors import GroupError
from ....reporting import warn
from ..settings import WAIT_LONGER
from .store import SignedStore, Store, first_line

__all__ = ["Messages"]

# After a failure of its own, a rank does not wait the whole timeout to learn what the others saw.
_GRACE = 10.0
_SILENT = b"\0silent"
_PAUSE = 0.05  # seconds until what a stranger wrote is looked at again


class Messages:
    """The messages of one group, as one of its ranks sends and reads them.

    A message lies in the store under `topic/rank`. Methods raise GroupError if the store is gone.
    """

    def __init__(self, store: SignedStore, group: str, rank: int, size: int, timeout: float) -> None:
        self._open_store: SignedStore | None = store
        self._subject = f"weight sync group {group!r}"
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._names = [f"rank {other}" for other in range(size)]

    @property
    def grace(self) -> float:
        """Seconds to wait for the others if it is already known that something went wrong."""
        return min(_GRACE, self._timeout)

    def name_ranks(self, names: Sequence[str]) -> None:
        """Give each rank the name under which a person would look for it."""
        self._names = list(names)

    def describe(self, rank: int) -> str:
        """Return the name of a rank."""
        return self._names[rank]

    def exchange(self, topic: str, message: bytes, limit: float | None = None) -> list[bytes]:
        """Send `message` to all ranks and return the message of each, by rank.

        Raises GroupError that names the ranks which sent nothing within `limit` seconds (the group's timeout), also
        on those ranks when they come later.
        """
        limit = self._timeout if limit is None else limit
        keys = [f"{topic}/{rank}" for rank in range(self._size)]
        self._answer(topic, keys[self._rank], message)
        timed_out = None
        with self._reached(topic):
            try:
                messages = self._collect(keys, limit)
            except RuntimeError as error:
                timed_out = error
                self._mark_silent(keys)
                messages = [_SILENT if value is None else value for value in self._signed.read(keys)]
        silent = [rank for rank, value in enumerate(messages) if value == _SILENT]
        if not silent:
            return messages
        self.let_others_read(topic, silent)
        names = ", ".join(self.describe(rank) for rank in silent)
        raise GroupError(
            subject=self._subject,
            expected="an answer from every rank",
            found=f"that {names} did not answer {topic!r} within {limit:g} s",
            fix="look for the error of that process: it has ended, hangs, or came late",
            override=WAIT_LONGER if limit == self._timeout else "",
        ) from timed_out

    def let_others_read(self, topic: str, silent: Sequence[int] = ()) -> None:
        """Before an error about `topic`: rank 0, which may end with it, keeps the store until all have read it.

        Raises nothing.
        """
        with contextlib.suppress(RuntimeError):
            if self._rank:
                self._signed.set(f"read/{topic}/{self._rank}", b"")
            else:
                self._collect(
                    [f"read/{topic}/{rank}" for rank in range(1, self._size) if rank not in silent], self.grace
                )

    def so_far(self, topic: str) -> dict[int, bytes]:
        """Return what ranks have sent on a topic by now, by rank; nothing if the store is gone."""
        messages = {}
        with contextlib.suppress(RuntimeError):
            for rank in range(self._size):
                message = self._signed.find(f"{topic}/{rank}")
                if message is not None and message != _SILENT:
                    messages[rank] = message
        return messages

    def put(self, key: str, value: bytes) -> None:
        """Leave a value in the store."""
        with self._reached(key):
            self._signed.set(key, value)

    def get(self, key: str) -> bytes:
        """Return the value that a rank leaves, or has left, under `key`. Raises GroupError if none comes in time."""
        try:
            return self._collect([key], self._timeout)[0]
        except RuntimeError as error:
            raise GroupError(
                subject=self._subject,
                expected=f"a rank to send {key!r}",
                found=f"nothing: {first_line(error)}",
                fix="look for the error of the other ranks",
                override=WAIT_LONGER,
            ) from error

    def forget(self, topics: Sequence[str]) -> None:
        """Delete this rank's own messages on these topics from the store."""
        for topic in topics:
            with self._reached(topic):
                self._signed.delete_key(f"{topic}/{self._rank}")

    def give_up(self, key: str, reason: str) -> None:
        """Tell the ranks that look under `key` why this one goes no further. The first reason stays."""
        with self._reached(key):
            self._signed.set_once(key, f"{self.describe(self._rank)}: {reason}".encode())

    def look(self, key: str) -> None:
        """Raise GroupError if a rank has given up under `key`, or if the process that serves the store is gone."""
        with self._reached(key):
            reason = self._signed.find(key)
        if reason is not None:
            raise GroupError(
                subject=self._subject,
                expected="every rank to go on",
                found=f"that one has given up: {reason.decode()}",
                fix="mend that error first",
            )

    def leave(self) -> None:
        """Say that this rank leaves. Rank 0 returns last: the store must outlive the last message of every rank."""
        self.put(f"left/{self._rank}", b"")
        if self._rank:
            return
        try:
            self._collect([f"left/{rank}" for rank in range(self._size)], self._timeout)
        except RuntimeError as error:
            raise GroupError(
                subject=self._subject,
                expected=f"every rank to leave within {self._timeout:g} s",
                found=f"that one did not: {first_line(error)}",
                fix="look for the error of the other ranks",
                override=WAIT_LONGER,
            ) from error

    def close(self) -> None:
        """Let go of the store."""
        self._open_store = None

    @property
    def store(self) -> Store:
        """The store itself, for a communicator to be made over it. Raises GroupError after `close`."""
        return self._signed.inner

    @property
    def _signed(self) -> SignedStore:
        if self._open_store is None:
            raise GroupError(
                subject=self._subject,
                expected="an open group",
                found="it is closed",
                fix="make the group again before the next sync",
            )
        return self._open_store

    def _mark_silent(self, keys: Sequence[str]) -> None:
        """Answer for the ranks that have not, so that all others stop waiting together with this one."""
        for key in keys:
            self._signed.set_once(key, _SILENT)

    def _answer(self, topic: str, key: str, message: bytes) -> None:
        """Send a message, unless the others wait for it no more."""
        with self._reached(topic):
            there = self._signed.set_once(key, message)
        if there != message:
            raise GroupError(
                subject=self._subject,
                expected=f"an answer of rank {self._rank} to {topic!r}, once and in time",
                found=f"that rank {self._rank} came late, when the others had given up on it, or a second time",
                fix="start all ranks together, each once, and look for what held this one up",
                override=WAIT_LONGER,
            )

    def _collect(self, keys: Sequence[str], limit: float) -> list[bytes]:
        """Return the values of all keys once ranks have written them. Raises RuntimeError after `limit` seconds."""
        deadline = time.monotonic() + limit
        while True:
            self._signed.wait(keys, timedelta(seconds=max(deadline - time.monotonic(), 1e-3)))
            values = self._signed.read(keys)
            strange = [key for key, value in zip(keys, values, strict=True) if value is None]
            if not strange:
                return [value for value in values if value is not None]
            warn(
                f"{self._subject}: somebody who is not of this job wrote a message ({', '.join(strange)}); it is not "
                "believed, and the rank itself is waited for"
            )
            if time.monotonic() > deadline:
                raise RuntimeError(f"only a stranger has written {', '.join(strange)}")
            time.sleep(_PAUSE)

    @contextlib.contextmanager
    def _reached(self, topic: str) -> Iterator[None]:
        """Inside, an error of the store becomes a GroupError that names the rank which serves it."""
        try:
            yield
        except GroupError:
            raise
        except RuntimeError as error:
            raise GroupError(
                subject=self._subject,
                expected=f"the store that {self.describe(0)} serves",
                found=f"that it is gone (at {topic!r}: {first_line(error)})",
                fix="look for the error of that rank",
            ) from error
