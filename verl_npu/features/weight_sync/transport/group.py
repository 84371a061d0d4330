"""A weight-sync group: ranks in several processes, a store for what they tell one another, HCCL for the weights."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ..errors import GroupError, first_line
from . import communicator
from .meeting import Meeting, enter

__all__ = ["Group", "find", "join", "refuse_second"]

# After a failure of its own, a rank does not wait the whole timeout to hear what the others saw.
_GRACE = 10.0
_SILENT = b"\0silent"

_groups: dict[str, Group] = {}


def find(name: str) -> Group:
    """Return this process's group of that name; raises GroupError where it was not made or is closed."""
    if name not in _groups:
        raise GroupError(
            f"weight sync: this process is in no group {name!r}: the trainer makes it before the first sync; "
            f"found {', '.join(_groups) or 'none'}"
        )
    return _groups[name]


def join(
    name: str,
    meeting: Meeting,
    rank: int,
    size: int,
    *,
    timeout: float,
    device: Any = None,
    moves: bool = True,
    label: str = "",
) -> Group:
    """Come to the meeting as `rank` of `size`, and return the group once all ranks are there.

    Ranks that move weights, rank 0 among them, get an HCCL communicator of their own beside the default group, on
    `device`; the others take part in the checks alone. `label` tells a person who the rank is. Raises GroupError where
    a group of that name is there already, or a rank does not come within `timeout` seconds; it names the rank.
    """
    refuse_second(name)
    group = Group(name, meeting, rank, size, timeout, device, moves or rank == 0, label)
    _groups[name] = group
    return group


def refuse_second(name: str) -> None:
    """Raise GroupError where this process is in a group of that name."""
    if name in _groups:
        raise GroupError(
            f"weight sync: {_groups[name].describe(_groups[name].rank)} is in a group {name!r} already: close it first"
        )


class Group:
    """The ranks that sync weights; made by `join`, of which it is the result."""

    def __init__(
        self,
        name: str,
        meeting: Meeting,
        rank: int,
        size: int,
        timeout: float,
        device: Any,
        moves: bool,
        label: str,
    ) -> None:
        if not 0 <= rank < size:
            raise GroupError(f"weight sync group {name!r}: expected a rank below {size}, found {rank}")
        self.name = name
        self.rank = rank
        self.size = size
        self.movers: tuple[int, ...] = ()
        """The ranks that weights are moved between."""
        self.timeout = timeout
        self.device = device
        self.broken: str | None = None
        """Why the group cannot be used any more."""
        self.syncs = 0
        """How many syncs were begun."""
        self.layout: Any = None
        """What syncs keep from one to the next."""
        self.announced: Any = None
        """What this rank announced last, and its metadata."""
        self._communicator: Any = None
        self._store = enter(meeting, name, rank, timeout)
        self._hosts: list[str] = [f"rank {other}" for other in range(size)]
        try:
            self._refuse_late()
            words = [json.loads(word) for word in self.exchange("join", _introduction(rank, label, moves))]
            self._hosts = [word["name"] for word in words]
            self.movers = tuple(other for other, word in enumerate(words) if word["moves"])
            if self.moves:
                self._communicator = communicator.connect(name, self._store, rank, self.movers, timeout)
                communicator.prove(self._communicator, rank == 0, device, timeout)
            self.exchange("ready", b"")
        except BaseException:
            self._release()
            raise

    @property
    def moves(self) -> bool:
        """Whether this rank sends or receives weights."""
        return self.rank in self.movers

    @property
    def grace(self) -> float:
        """Seconds to wait for the others where it is known already that something went wrong."""
        return min(_GRACE, self.timeout)

    def describe(self, rank: int) -> str:
        """Name a rank as a person would look for it."""
        return self._hosts[rank]

    def exchange(self, topic: str, word: bytes, limit: float | None = None) -> list[bytes]:
        """Tell all ranks `word` and return what each told, by rank.

        Raises GroupError that names the ranks which said nothing within `limit` seconds (the group's timeout).
        """
        limit = self.timeout if limit is None else limit
        keys = [f"{topic}/{rank}" for rank in range(self.size)]
        try:
            self._store.set(keys[self.rank], word)
        except RuntimeError as error:
            raise self._store_is_gone(topic, error) from error
        cause = None
        try:
            self._store.wait(keys, timedelta(seconds=limit))
        except RuntimeError as error:
            cause = error
        try:
            if cause is not None:
                self._mark_silent(keys)
            words = [bytes(found) for found in self._store.multi_get(keys)]
        except RuntimeError as error:
            raise self._store_is_gone(topic, error) from error
        silent = [rank for rank, word in enumerate(words) if word == _SILENT]
        if not silent:
            return words
        self.let_others_read(topic, silent)
        names = ", ".join(self.describe(rank) for rank in silent)
        raise GroupError(
            f"weight sync group {self.name!r}: {names} did not answer {topic!r} within {limit:g} s: "
            "that process has ended, hangs, or came late"
        ) from cause

    def let_others_read(self, topic: str, silent: Sequence[int] = ()) -> None:
        """Before an error about `topic`: rank 0, which may end with it, keeps the store until all have read."""
        with contextlib.suppress(RuntimeError):
            if self.rank:
                self._store.set(f"heard/{topic}/{self.rank}", b"")
            else:
                heard = [f"heard/{topic}/{rank}" for rank in range(1, self.size) if rank not in silent]
                self._store.wait(heard, timedelta(seconds=self.grace))

    def heard(self, topic: str) -> dict[int, bytes]:
        """What ranks have told on a topic so far, by rank; nothing where the store is gone."""
        found = {}
        with contextlib.suppress(RuntimeError):
            for rank in range(self.size):
                key = f"{topic}/{rank}"
                if self._store.check([key]) and (word := bytes(self._store.get(key))) != _SILENT:
                    found[rank] = word
        return found

    def tell(self, key: str, word: bytes) -> None:
        """Leave `word` in the store."""
        try:
            self._store.set(key, word)
        except RuntimeError as error:
            raise self._store_is_gone(key, error) from error

    def ask(self, key: str, limit: float | None = None) -> bytes:
        """Return what a rank leaves, or has left, under `key`."""
        try:
            self._store.wait([key], timedelta(seconds=self.timeout if limit is None else limit))
            return bytes(self._store.get(key))
        except RuntimeError as error:
            raise GroupError(f"weight sync group {self.name!r}: nobody told {key!r}: {first_line(error)}") from error

    def forget(self, keys: Sequence[str]) -> None:
        """Take this rank's own words back from the store."""
        for key in keys:
            self._store.delete_key(f"{key}/{self.rank}")

    def broadcast(self, tensor: Any) -> Any:
        """Start a broadcast from rank 0 to the movers; the work that is returned has `wait(timedelta)`."""
        return communicator.broadcast(self._communicator, tensor, self.timeout)

    def wait_for_device(self) -> None:
        """Wait until this NPU has done its part of the broadcasts; raises GroupError after the group's timeout."""
        communicator.wait_for_device(time.monotonic() + self.timeout)

    def break_off(self, reason: str) -> None:
        """Refuse all further use, and drop the communicator so that ranks which wait for this one see it."""
        self.broken = self.broken or reason
        dropped, self._communicator = self._communicator, None
        if dropped is not None:
            # On an NPU this may wait for the very operation that is stuck.
            threading.Thread(target=communicator.destroy, args=(dropped,), daemon=True).start()

    def check_usable(self) -> None:
        """Raise GroupError where the group broke."""
        if self.broken is not None:
            raise GroupError(f"weight sync group {self.name!r} broke and cannot be used: {self.broken}")

    def close(self) -> None:
        """Leave together: all ranks say so, then the communicator goes, and rank 0's store last of all.

        Raises GroupError where a rank did not come to leave; this process is out of the group all the same.
        """
        try:
            if self.broken is None:
                self.exchange("close", b"")
        finally:
            dropped, self._communicator = self._communicator, None
            if dropped is not None:
                communicator.destroy(dropped)
            try:
                if self.broken is None:
                    self._leave()
            finally:
                self._release()
                if _groups.get(self.name) is self:
                    del _groups[self.name]

    def _leave(self) -> None:
        # The store must outlive every rank's last word to it.
        self._store.set(f"left/{self.rank}", b"")
        if self.rank == 0:
            self._store.wait([f"left/{rank}" for rank in range(self.size)], timedelta(seconds=self.timeout))

    def _release(self) -> None:
        self.broken = self.broken or "it is closed"
        self._store = None

    def _refuse_late(self) -> None:
        try:
            late = self._store.check([f"join/{self.rank}"])
        except RuntimeError as error:
            raise self._store_is_gone("join", error) from error
        if late:
            raise GroupError(
                f"weight sync group {self.name!r}: rank {self.rank} came when the others had given up on it, or is "
                "there twice: they waited for their timeout (VERL_NPU_WEIGHT_SYNC_TIMEOUT)"
            )

    def _mark_silent(self, keys: Sequence[str]) -> None:
        """Answer for the ranks that have not, so that all others end their waiting with this one."""
        for key in keys:
            if not self._store.check([key]):
                self._store.set(key, _SILENT)

    def _store_is_gone(self, topic: str, error: Exception) -> GroupError:
        return GroupError(
            f"weight sync group {self.name!r}: {self.describe(0)}, which keeps the group's store, is gone "
            f"(at {topic!r}: {first_line(error)})"
        )


def _introduction(rank: int, label: str, moves: bool) -> bytes:
    name = f"rank {rank} ({f'{label} ' if label else ''}{socket.gethostname()} pid {os.getpid()})"
    return json.dumps({"name": name, "moves": moves}).encode()
