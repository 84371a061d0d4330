"""An HCCL communicator beside the default process group."""

from __future__ import annotations

import inspect
import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from ....ascend import variables
from ....ascend.variables import Timeouts
from ....errors import GroupError
from ....reporting import warn
from ..settings import WAIT_LONGER
from .messages import Store

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

BACKEND = "hccl"
_LONGEST = 2**31 - 1
"""Seconds. A time-out beyond it could not be made longer by what is added to it, nor be given to torch."""
_LOOK = 1.0  # seconds between two looks for what makes it useless to wait

_SUBJECT = "weight sync communicator"

_numbers = itertools.count()


class Work(Protocol):
    """An operation that was started."""

    def wait(self, timeout: timedelta) -> object:
        """Wait until it is done, or have the NPU wait. Raises RuntimeError if it failed or did not end in time."""
        ...

    def is_completed(self) -> bool: ...


def connect(name: str, store: Store, rank: int, movers: Sequence[int], timeout: float) -> ProcessGroup:
    """Make a process group over `movers` beside the default one, whether or not there is a default one.

    `timeout` is how many seconds the ranks wait for each other; the group's own is longer (`group_timeout`).
    torch has no public function for ranks that are not all of the default group; this internal one serves
    `init_process_group` and `new_group` themselves, and RL frameworks call it for this purpose.
    """
    from torch.distributed import Backend, PrefixStore
    from torch.distributed import distributed_c10d as c10d

    helper = c10d._new_process_group_helper
    # torch 2.6 renamed it.
    option = "backend_options" if "backend_options" in inspect.signature(helper).parameters else "pg_options"
    arguments: dict[str, None] = {option: None}
    communicator, _ = helper(
        len(movers),
        movers.index(rank),
        [],
        Backend(BACKEND),
        PrefixStore(BACKEND, store),
        group_name=f"verl_npu/weight_sync/{name}/{next(_numbers)}",
        timeout=timedelta(seconds=group_timeout(timeout, Timeouts.read(os.environ))),
        **arguments,
    )
    c10d._world.pg_group_ranks[communicator] = {mover: mover for mover in range(len(movers))}
    return communicator


def group_timeout(timeout: float, hccl: Timeouts) -> float:
    """Return the timeout in seconds for a process group in which the ranks wait `timeout` seconds for each other.

    After it torch_npu's watchdog ends the whole process, while after ours every rank gets an error that says who is
    missing. So it must be longer than all that we may wait for one broadcast: the wait for the one before it, its own
    and the one for the NPU. It must also be longer than HCCL's, after which HCCL writes down what it was waiting for.

    Raises GroupError if one of HCCL's is too long for that.
    """
    for name, seconds in ((variables.EXECUTION, hccl.execution), (variables.CONNECT, hccl.connect)):
        if _LONGEST < seconds < math.inf:
            raise GroupError(
                subject=f"{name}={os.environ.get(name, f'{seconds:g}')}",
                expected=f"at most {_LONGEST} seconds",
                found=f"{seconds:g} seconds",
                fix=f"set {name} to less, or leave it out",
            )
    if timeout >= hccl.execution:
        warn(
            f"the ranks of a weight sync wait {timeout:g} s for each other, but HCCL gives up after "
            f"{variables.EXECUTION}={hccl.execution:g} s and then names no rank: set {WAIT_LONGER} to less, or "
            f"{variables.EXECUTION} to more"
        )
    least = 3 * timeout + 60
    return least if math.isinf(hccl.execution) else max(least, hccl.connect + hccl.execution + 60)


def destroy(communicator: ProcessGroup) -> None:
    """Destroy a communicator."""
    import torch.distributed

    torch.distributed.destroy_process_group(communicator)


def broadcast(communicator: ProcessGroup, tensor: torch.Tensor, timeout: float) -> Work:
    """Start a broadcast from rank 0."""
    from torch.distributed import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = 0
    options.timeout = timedelta(seconds=timeout)
    work: Work = communicator.broadcast([tensor], options)
    return work


def prove(communicator: ProcessGroup, source: bool, device: torch.device, timeout: float, proof: bytes) -> None:
    """Broadcast a number, so that a disabled or unconnected communicator shows now and not as stale weights.

    The number is made of `proof`, which only ranks of the group know: who has taken the place of rank 0 cannot send
    it. Raises GroupError if the number did not arrive.
    """
    import torch

    true = int.from_bytes(proof[:7], "big")
    number = torch.full((1,), true if source else 0, dtype=torch.int64, device=device)
    finish(broadcast(communicator, number, timeout), timeout)
    wait_for_device(time.monotonic() + timeout)
    if int(number.item()) != true:
        raise GroupError(
            subject=_SUBJECT,
            expected=f"the number that all ranks know from rank 0, after a first broadcast over {BACKEND}",
            found=f"another one ({int(number.item())}), although {BACKEND} reported no error",
            fix="see HCCL's own log for what it could not connect",
        )


def wait_for_device(deadline: float, look: Callable[[], None] | None = None) -> None:
    """Wait until this NPU has done all that was queued on it. Raises GroupError after `deadline` (monotonic seconds).

    A collective whose peer is gone never ends on an NPU, and a plain synchronize would hang with it. `look` is called
    about every second, and may raise what makes it useless to wait.
    """
    import torch

    event = torch.npu.Event()
    event.record()
    _poll(event.query, deadline, look)


def finish(work: Work, timeout: float, look: Callable[[], None] | None = None) -> None:
    """Wait until a collective is over. Raises GroupError after `timeout` seconds, and RuntimeError if it failed.

    `look` is called about every second, and may raise what makes it useless to wait. torch_npu's own `wait` lets the
    NPU wait, and not this process: whatever reads a result next would hang.
    """
    deadline = time.monotonic() + timeout
    work.wait(timedelta(seconds=timeout))
    _poll(work.is_completed, deadline, look)


def _poll(done: Callable[[], bool], deadline: float, look: Callable[[], None] | None) -> None:
    pause, looks = 1e-5, time.monotonic() + _LOOK
    while not done():
        if look is not None and time.monotonic() > looks:
            look()
            looks = time.monotonic() + _LOOK
        if time.monotonic() > deadline:
            raise GroupError(
                subject=_SUBJECT,
                expected="this NPU to finish its broadcasts in time",
                found="that it is still busy: a rank of the broadcast is gone or hangs",
                fix="look for the error of the other ranks",
            )
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)
