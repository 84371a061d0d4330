"""A group for weight syncs: ranks in several processes that exchange messages and move weights over HCCL."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from ....errors import GroupError
from . import communicator
from .messages import Meeting, Messages, enter, first_line
from .plan import History

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

_groups: dict[str, Group] = {}


def find(name: str) -> Group:
    """Return this process's group called `name`. Raises GroupError if the group does not exist or was closed."""
    if name not in _groups:
        raise GroupError(
            subject=f"weight sync group {name!r}",
            found="this process has not joined the group"
            + (f"; it has joined only {', '.join(map(repr, _groups))}" if _groups else ""),
            fix="check the trainer for errors, because the trainer creates the group before the first weight sync",
        )
    return _groups[name]


def join(
    name: str,
    meeting: Meeting,
    rank: int,
    size: int,
    *,
    timeout: float,
    device: torch.device | None = None,
    moves: bool = True,
    label: str = "",
) -> Group:
    """Join a group as rank `rank` of `size` ranks. Return the group after all ranks have joined. `meeting` is the data
    that ranks need to form the group.

    If `moves` is true, this rank sends or receives weights, and gets an HCCL communicator on `device` that is separate
    from the default group. Rank 0 always sends weights. Any other rank whose `moves` is false only takes part in the
    checks. `label` is this rank's name in messages to the user. Raises GroupError if this process is already in a
    group called `name`. If a rank does not join within `timeout` seconds, raises a GroupError that names that rank.
    """
    refuse_second(name)
    group = Group(name, meeting, rank, size, timeout, device, moves or rank == 0, label)
    _groups[name] = group
    return group


def refuse_second(name: str) -> None:
    """Raise GroupError if this process is already in a group called `name`."""
    if name in _groups:
        group = _groups[name]
        raise GroupError(
            subject=f"weight sync group {name!r}",
            found=f"this process has already joined a group with this name, as {group.describe(group.rank)}",
            fix="close the existing group first",
        )


class Group:
    """The ranks that sync weights together. `join` creates groups."""

    def __init__(
        self,
        name: str,
        meeting: Meeting,
        rank: int,
        size: int,
        timeout: float,
        device: torch.device | None,
        moves: bool,
        label: str,
    ) -> None:
        if not 0 <= rank < size:
            raise GroupError(
                subject=f"weight sync group {name!r}",
                expected=f"a rank from 0 to {size - 1}",
                found=f"the rank {rank}",
                fix="number the ranks of a group from 0",
            )
        self.name: Final = name
        self.rank: Final = rank
        self.size: Final = size
        self.timeout: Final = timeout
        self.device: Final = device
        self.history: Final = History()
        """The state that one sync leaves for the next one."""
        self._proof: Final = meeting.secret.derived("proof")
        self.messages: Final = Messages(enter(meeting, name, rank, timeout), name, rank, size, timeout)
        self._movers: tuple[int, ...] = ()
        self._broken: str | None = None
        self._communicator: ProcessGroup | None = None
        try:
            self._meet(label, moves)
        except BaseException:
            self._release()
            raise

    @property
    def movers(self) -> tuple[int, ...]:
        """The ranks that send or receive weights ("movers"). The other ranks only take part in the checks."""
        return self._movers

    @property
    def moves(self) -> bool:
        """Whether this rank sends or receives weights."""
        return self.rank in self._movers

    def describe(self, rank: int) -> str:
        """Return a human-readable name of a rank: its role, host, and process id."""
        return self.messages.describe(rank)

    def broadcast(self, tensor: torch.Tensor) -> communicator.Work:
        """Start a broadcast from rank 0 to all ranks that receive weights. Raises GroupError if the group is
        broken."""
        if self._communicator is None:
            raise self._unusable()
        return communicator.broadcast(self._communicator, tensor, self.timeout)

    def finish(self, work: communicator.Work, number: int) -> None:
        """Wait for a broadcast of sync `number`.

        Raises GroupError after the group's timeout, or as soon as another rank aborts the sync. Raises RuntimeError if
        the broadcast fails.
        """
        communicator.finish(work, self.timeout, lambda: self.messages.look(_given_up(number)))

    def wait_for_device(self, number: int) -> None:
        """Wait until this NPU has completed its part of the broadcasts of sync `number`. Raises GroupError in the same
        cases as `finish`."""
        deadline = time.monotonic() + self.timeout
        communicator.wait_for_device(deadline, lambda: self.messages.look(_given_up(number)))

    def give_up(self, number: int, reason: str) -> None:
        """Make the group unusable (see `break_off`), and notify the ranks that are waiting in sync number `number`."""
        self.break_off(reason)
        with contextlib.suppress(GroupError):
            self.messages.give_up(_given_up(number), reason)

    def break_off(self, reason: str) -> None:
        """Make the group unusable, and drop its communicator, so that waiting ranks notice."""
        self._broken = self._broken or reason
        dropped, self._communicator = self._communicator, None
        if dropped is not None:
            # On an NPU, this may wait for the stuck operation itself.
            threading.Thread(target=communicator.destroy, args=(dropped,), daemon=True).start()

    def check_usable(self) -> None:
        """Raise GroupError if the group is broken or closed."""
        if self._broken is not None:
            raise self._unusable()

    def close(self) -> None:
        """Leave the group together with the other ranks. When all ranks are ready to leave, they destroy the
        communicator. After all other ranks have left, rank 0 shuts down the store.

        Raises GroupError if a rank does not leave with the others. Even then, this process has left the group.
        """
        try:
            if self._broken is None:
                self.messages.exchange("close", b"")
        finally:
            dropped, self._communicator = self._communicator, None
            if dropped is not None:
                communicator.destroy(dropped)
            try:
                if self._broken is None:
                    self.messages.leave()
            finally:
                self._release()
                if _groups.get(self.name) is self:
                    del _groups[self.name]

    def _meet(self, label: str, moves: bool) -> None:
        ranks = [json.loads(text) for text in self.messages.exchange("join", _introduction(self.rank, label, moves))]
        self.messages.name_ranks([rank["name"] for rank in ranks])
        self._movers = tuple(number for number, rank in enumerate(ranks) if rank["moves"])
        if self.moves:
            self._connect()
        self.messages.exchange("ready", b"")

    def _connect(self) -> None:
        try:
            self._communicator = communicator.connect(
                self.name, self.messages.store, self.rank, self._movers, self.timeout
            )
            communicator.prove(self._communicator, self.rank == 0, self.device, self.timeout, self._proof)
        except GroupError:
            raise
        except RuntimeError as error:
            raise GroupError(
                subject=f"weight sync group {self.name!r}",
                found=f"HCCL cannot connect {', '.join(map(self.describe, self._movers))}: {first_line(error)}",
                fix="check the errors of the other ranks and HCCL's own log",
            ) from error

    def _release(self) -> None:
        self._broken = self._broken or "the group is closed"
        self.messages.close()

    def _unusable(self) -> GroupError:
        return GroupError(
            subject=f"weight sync group {self.name!r}",
            found=f"the group is broken and cannot be used: {self._broken or 'this rank transfers no weights'}",
            fix="fix the cause, and start the job again",
        )


def _given_up(number: int) -> str:
    return f"{number}/given up"


def _introduction(rank: int, label: str, moves: bool) -> bytes:
    name = f"rank {rank} ({f'{label} ' if label else ''}{socket.gethostname()} pid {os.getpid()})"
    return json.dumps({"name": name, "moves": moves}).encode()
