"""Messages between the ranks of a group. They go through a store that rank 0's process serves."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from .... import environment
from ....errors import GroupError
from ....reporting import warn
from ..settings import WAIT_LONGER

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_HASH = "sha256"
_SIGNATURE = hashlib.sha256().digest_size


class Store(Protocol):
    """A store of torch.distributed. This type exists because torch's type annotations declare `str` where the store
    also accepts bytes.

    Each method raises RuntimeError if the process that serves the store has exited. `wait` also raises it after its
    timeout.
    """

    def set(self, key: str, value: bytes) -> object: ...
    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes: ...
    def multi_get(self, keys: list[str]) -> list[bytes]: ...
    def wait(self, keys: list[str], timeout: timedelta) -> object: ...
    def check(self, keys: list[str]) -> bool: ...
    def delete_key(self, key: str) -> object: ...


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret that only the ranks of a group know. A separate key for each use is derived from it."""

    value: bytes

    def __repr__(self) -> str:
        return "Secret(...)"  # the secret must not get into a log

    def derived(self, use: str) -> bytes:
        """Return a 32-byte key for one use. Neither the secret nor the keys for other uses can be derived from this
        key."""
        return hmac.digest(self.value, use.encode(), _HASH)


class SignedStore:
    """A store that signs each value with a signature that only ranks of the group can create.

    torch's TCPStore trusts every process that connects to it. This class ignores values that a process outside the
    group wrote, and values that were signed for another key.
    """

    def __init__(self, store: Store, secret: Secret) -> None:
        self.inner = store
        """The store without signatures. torch uses it for its own values."""
        self._key = secret.derived("messages")

    def set(self, key: str, value: bytes) -> None:
        """Put a value under a key."""
        self.inner.set(key, self._signature(key, value) + value)

    def set_once(self, key: str, value: bytes) -> bytes:
        """Put a value under a key, unless a rank of the group has already put a value under this key. In both cases,
        return the value that is now under the key."""
        signed, known = self._signature(key, value) + value, b""
        while True:
            there = bytes(self.inner.compare_set(key, known, signed))
            found = self._checked(key, there)
            if found is not None:
                if there == signed:
                    # Nobody replaces the value now. In torch 2.5, compare_set alone does not wake ranks that wait.
                    self.inner.set(key, signed)
                return found
            # Replace a value from outside the group. If that value is gone, the store returns the expected value.
            known = b"" if there == known else there

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Wait until every key has a value, and return the values. A value without the signature of a rank of the
        group is returned as None."""
        values = self.inner.multi_get(list(keys))
        return [self._checked(key, bytes(value)) for key, value in zip(keys, values, strict=True)]

    def find(self, key: str) -> bytes | None:
        """Return the current value of a key, or None if the key has no value or its value was not signed by a rank of
        the group."""
        return self.read([key])[0] if self.inner.check([key]) else None

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Wait until every key has a value, whether or not the value is signed. Raises RuntimeError after the
        timeout."""
        self.inner.wait(list(keys), timeout)

    def delete_key(self, key: str) -> None:
        """Remove a key."""
        self.inner.delete_key(key)

    def _signature(self, key: str, value: bytes) -> bytes:
        # A key contains no zero byte, so no other pair of key and value gives the same bytes.
        return hmac.digest(self._key, key.encode() + b"\0" + value, _HASH)

    def _checked(self, key: str, signed: bytes) -> bytes | None:
        signature, value = signed[:_SIGNATURE], signed[_SIGNATURE:]
        return value if hmac.compare_digest(signature, self._signature(key, value)) else None


def first_line(error: Exception) -> str:
    """Return an error's message without the native stack frames that torch appends."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


@dataclass(frozen=True, slots=True)
class Meeting:
    """The data that ranks need to form a group: the address of the store that rank 0's process serves, and a secret.

    Every process that has this data is treated as a rank. So the data is passed only to the ranks, through Ray, which
    also starts them.
    """

    host: str
    port: int
    secret: Secret

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


# Stores that this process serves, until their groups take them over.
_served: dict[Meeting, TCPStore] = {}


def open_meeting(host: str, port: int, timeout: float) -> Meeting:
    """Start a store server in this process, which will be rank 0. The server listens only on `host`. Port 0 means any
    free port.

    `host` is an address of this machine that the other ranks can reach. It is IPv4, or IPv6 with or without brackets.
    Raises GroupError if the port is in use, or if this machine does not have the address.
    """
    asked = Meeting(host.strip("[]"), port, Secret(secrets.token_bytes(32)))
    try:
        store = serve(asked.host, port, timeout)
    except (OSError, RuntimeError) as error:
        raise GroupError(
            subject="weight sync",
            found=f"rank 0 cannot serve the group's messages at {asked}: {first_line(error)}",
            fix=f"use another port, or unset {environment.WEIGHT_SYNC_PORT.name} to get a free port; if the address "
            "is incorrect, set it with `ray start --node-ip-address`",
        ) from error
    meeting = replace(asked, port=store.port)
    _served[meeting] = store
    return meeting


def serve(host: str, port: int, timeout: float) -> TCPStore:
    """Start a store server in this process. The server listens only on `host`, whereas torch's server by default
    listens on all interfaces.

    Raises OSError or RuntimeError if the port is in use, or if this machine does not have the address.
    """
    from torch.distributed import TCPStore

    with closing(_listen(host, port)) as listening:
        made = functools.partial(
            TCPStore,
            host,
            listening.getsockname()[1],
            None,
            True,
            timedelta(seconds=timeout),
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
        try:
            return made()
        except NotImplementedError:
            # torch 2.5's default backend, libuv, does not accept a listening socket; its older backend does.
            return made(use_libuv=False)


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(4096)
    except OSError:
        listening.close()
        raise
    return listening


def enter(meeting: Meeting, group: str, rank: int, timeout: float) -> SignedStore:
    """Return the group's store. All keys in the store have a prefix that only the ranks of the group know.

    torch stores its own values under such keys, and HCCL uses these values to establish its connections. We cannot
    sign these values. Processes outside the group do not know the keys, unless their version of torch can list all
    keys. `communicator.prove` detects a replaced value.

    Rank 0 gets the store that this process serves, and the other ranks get a connection to that store. Raises
    GroupError if there is no store at the address.
    """
    from torch.distributed import PrefixStore, TCPStore

    prefix = f"{group}/{meeting.secret.derived('keys').hex()}"
    if rank == 0:
        if meeting not in _served:
            raise GroupError(
                subject=f"weight sync group {group!r}",
                found=f"rank 0 joined in a process that does not serve {meeting}",
                fix="call open_meeting and join in the same process",
            )
        return SignedStore(PrefixStore(prefix, _served.pop(meeting)), meeting.secret)
    try:
        store = TCPStore(meeting.host, meeting.port, None, False, timedelta(seconds=timeout))
    except RuntimeError as error:
        raise GroupError(
            subject=f"weight sync group {group!r}",
            found=f"rank {rank} cannot reach rank 0 at {meeting}: {first_line(error)}",
            fix="if rank 0 has exited or aborted, check its error; otherwise, find out why this rank joined late",
        ) from error
    return SignedStore(PrefixStore(prefix, store), meeting.secret)


# After its own failure, a rank waits only for this time, instead of the whole timeout, for the other ranks' messages.
_GRACE = 10.0
_SILENT = b"\0silent"
_PAUSE = 0.05  # seconds between two reads of a key that a process outside the group wrote


class Messages:
    """The messages of a group, as one rank sees them.

    The store contains each message under `topic/rank`. All methods raise GroupError if the store is no longer
    available.
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
        """The number of seconds to wait for the other ranks after this rank has failed."""
        return min(_GRACE, self._timeout)

    def name_ranks(self, names: Sequence[str]) -> None:
        """Give each rank a human-readable name."""
        self._names = list(names)

    def describe(self, rank: int) -> str:
        """Return the name of a rank."""
        return self._names[rank]

    def exchange(self, topic: str, message: bytes, limit: float | None = None) -> list[bytes]:
        """Send `message` to all ranks. Return the messages of all ranks, in the order of the ranks.

        If some ranks send no message within `limit` seconds (default: the group's timeout), raises a GroupError that
        names them. If one of these ranks sends its message later, that rank raises a GroupError, too.
        """
        limit = self._timeout if limit is None else limit
        keys = [f"{topic}/{rank}" for rank in range(self._size)]
        self._answer(topic, keys[self._rank], message)
        timed_out = None
        with self._store_errors_explained(topic):
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
            found=f"{names} did not answer {topic!r} within {limit:g} s",
            fix="check the log of each of these processes: the process has exited, is hanging, or responded too late",
            override=WAIT_LONGER if limit == self._timeout else "",
        ) from timed_out

    def let_others_read(self, topic: str, silent: Sequence[int] = ()) -> None:
        """Keep the store available until all ranks have read the messages about `topic`. Call this method before you
        raise an error about `topic`.

        On rank 0, the method waits for the other ranks. Without this wait, the error might end rank 0, whose process
        serves the store. The method raises no error.
        """
        with contextlib.suppress(RuntimeError):
            if self._rank:
                self._signed.set(f"read/{topic}/{self._rank}", b"")
            else:
                self._collect(
                    [f"read/{topic}/{rank}" for rank in range(1, self._size) if rank not in silent], self.grace
                )

    def so_far(self, topic: str) -> dict[int, bytes]:
        """Return the messages that ranks have sent on a topic so far, as a mapping from ranks to messages. The mapping
        is empty if the store is no longer available."""
        messages = {}
        with contextlib.suppress(RuntimeError):
            for rank in range(self._size):
                message = self._signed.find(f"{topic}/{rank}")
                if message is not None and message != _SILENT:
                    messages[rank] = message
        return messages

    def put(self, key: str, value: bytes) -> None:
        """Put a value into the store."""
        with self._store_errors_explained(key):
            self._signed.set(key, value)

    def get(self, key: str) -> bytes:
        """Wait for a rank to put a value under `key`, and return the value. Raises GroupError if no value arrives in
        time."""
        try:
            return self._collect([key], self._timeout)[0]
        except RuntimeError as error:
            raise GroupError(
                subject=self._subject,
                found=f"no rank sent {key!r} in time: {first_line(error)}",
                fix="check the errors of the other ranks",
                override=WAIT_LONGER,
            ) from error

    def forget(self, topics: Sequence[str]) -> None:
        """Delete the messages of this rank on these topics from the store."""
        for topic in topics:
            with self._store_errors_explained(topic):
                self._signed.delete_key(f"{topic}/{self._rank}")

    def give_up(self, key: str, reason: str) -> None:
        """Publish the reason why this rank aborts, so that the ranks that check `key` can read the reason. If another
        rank has already published a reason under `key`, keep that reason."""
        with self._store_errors_explained(key):
            self._signed.set_once(key, f"{self.describe(self._rank)}: {reason}".encode())

    def look(self, key: str) -> None:
        """Raise GroupError if a rank has aborted and published its reason under `key`, or if the store is no longer
        available."""
        with self._store_errors_explained(key):
            reason = self._signed.find(key)
        if reason is not None:
            raise GroupError(
                subject=self._subject,
                found=f"another rank aborted: {reason.decode()}",
                fix="fix the error of that rank first",
            )

    def leave(self) -> None:
        """Announce that this rank is leaving the group. On rank 0, return only after all other ranks have left,
        because rank 0 serves the store that they need."""
        self.put(f"left/{self._rank}", b"")
        if self._rank:
            return
        try:
            self._collect([f"left/{rank}" for rank in range(self._size)], self._timeout)
        except RuntimeError as error:
            raise GroupError(
                subject=self._subject,
                found=f"a rank did not leave the group within {self._timeout:g} s: {first_line(error)}",
                fix="check the errors of the other ranks",
                override=WAIT_LONGER,
            ) from error

    def close(self) -> None:
        """Release the store."""
        self._open_store = None

    @property
    def store(self) -> Store:
        """The store without signatures, which is used to create a communicator. Raises GroupError after `close`."""
        return self._signed.inner

    @property
    def _signed(self) -> SignedStore:
        if self._open_store is None:
            raise GroupError(
                subject=self._subject,
                found="the group is closed",
                fix="re-create the group before the next weight sync",
            )
        return self._open_store

    def _mark_silent(self, keys: Sequence[str]) -> None:
        """Put answers under the keys of the ranks that sent no message, so that all ranks stop waiting at the same
        time."""
        for key in keys:
            self._signed.set_once(key, _SILENT)

    def _answer(self, topic: str, key: str, message: bytes) -> None:
        """Send a message. Raises GroupError if the others no longer wait for it."""
        with self._store_errors_explained(topic):
            there = self._signed.set_once(key, message)
        if there != message:
            raise GroupError(
                subject=self._subject,
                found=f"rank {self._rank} answered {topic!r} twice, or only after the other ranks had given up",
                fix="start all ranks at the same time, and each rank only once; if this rank was late, find out why",
                override=WAIT_LONGER,
            )

    def _collect(self, keys: Sequence[str], limit: float) -> list[bytes]:
        """Wait until all keys have values, and return the values. Raises RuntimeError after `limit` seconds."""
        deadline = time.monotonic() + limit
        while True:
            self._signed.wait(keys, timedelta(seconds=max(deadline - time.monotonic(), 1e-3)))
            values = self._signed.read(keys)
            strange = [key for key, value in zip(keys, values, strict=True) if value is None]
            if not strange:
                return [value for value in values if value is not None]
            warn(
                f"{self._subject}: a process outside of this job wrote the message {', '.join(strange)}; this rank "
                "ignores the message and waits for the real one"
            )
            if time.monotonic() > deadline:
                raise RuntimeError(f"only processes outside of this job wrote to these keys: {', '.join(strange)}")
            time.sleep(_PAUSE)

    @contextlib.contextmanager
    def _store_errors_explained(self, topic: str) -> Iterator[None]:
        """Context manager that turns each error of the store into a GroupError. The GroupError names the rank that
        serves the store."""
        try:
            yield
        except GroupError:
            raise
        except RuntimeError as error:
            raise GroupError(
                subject=self._subject,
                found=f"{self.describe(0)}, which served the group's messages, is gone (at {topic!r}: "
                f"{first_line(error)})",
                fix="check the log of that process for an error",
            ) from error
