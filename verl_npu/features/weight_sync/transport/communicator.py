"""An HCCL communicator that is separate from the default process group."""

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
_MAX_SECONDS = 2**31 - 1
"""The longest timeout in seconds. torch accepts this timeout plus the seconds that this module adds."""
_LOOK = 1.0  # seconds between two calls of `look`

_SUBJECT = "weight sync communicator"

_numbers = itertools.count()


class Work(Protocol):
    """An operation that was started and may still be running."""

    def wait(self, timeout: timedelta) -> object:
        """Wait until the operation is done, or make the NPU wait for it. Raises RuntimeError if it fails or takes too
        long."""
        ...

    def is_completed(self) -> bool: ...


def connect(name: str, store: Store, rank: int, movers: Sequence[int], timeout: float) -> ProcessGroup:
    """Create a process group of the ranks `movers`. It is separate from the default group, which need not exist.

    The ranks wait `timeout` seconds for each other. The group's own timeout is longer (see `group_timeout`). torch has
    no public function that creates a group of ranks outside of the default group. So we call the internal function
    that `init_process_group` and `new_group` call. Other RL frameworks do the same.
    """
    from torch.distributed import Backend, PrefixStore
    from torch.distributed import distributed_c10d as c10d

    helper = c10d._new_process_group_helper
    # torch 2.6 renamed the parameter.
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
    """Return the timeout, in seconds, for a process group whose ranks wait `timeout` seconds for each other.

    After `timeout`, every rank gets an error that names the missing rank. After the group's timeout, torch_npu's
    watchdog kills the whole process. So the group's timeout must be longer than the sum of the waits during one
    broadcast: the wait for the previous broadcast, the wait for this broadcast, and the wait for the NPU. The group's
    timeout must also be longer than HCCL's timeout, after which HCCL logs the cause of its wait.

    Raises GroupError if one of HCCL's timeouts is finite but longer than `_MAX_SECONDS`.
    """
    for name, seconds in ((variables.EXECUTION, hccl.execution), (variables.CONNECT, hccl.connect)):
        if _MAX_SECONDS < seconds < math.inf:
            raise GroupError(
                subject=f"{name}={os.environ.get(name, f'{seconds:g}')}",
                expected=f"at most {_MAX_SECONDS} seconds",
                found=f"{seconds:g} seconds",
                fix=f"lower {name}, or unset it",
            )
    if timeout >= hccl.execution:
        warn(
            f"the ranks of a weight sync wait {timeout:g} s for each other, but HCCL gives up after "
            f"{variables.EXECUTION}={hccl.execution:g} s with an error that names no rank: lower {WAIT_LONGER}, or "
            f"raise {variables.EXECUTION}"
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
    """Broadcast a number to test the communicator. If the communicator is disabled or not connected, the test fails.
    Without this test, the ranks would continue to train with stale weights.

    The number is derived from `proof`, which only the group's ranks know, so that no other process can impersonate
    rank 0. Raises GroupError if the number does not arrive.
    """
    import torch

    true = int.from_bytes(proof[:7], "big")
    number = torch.full((1,), true if source else 0, dtype=torch.int64, device=device)
    finish(broadcast(communicator, number, timeout), timeout)
    wait_for_device(time.monotonic() + timeout)
    if int(number.item()) != true:
        raise GroupError(
            subject=_SUBJECT,
            found=f"{BACKEND} reported no error, but its first broadcast delivered {int(number.item())} instead of "
            "the number that rank 0 sent",
            fix="check HCCL's own log for failed connections",
        )


def wait_for_device(deadline: float, look: Callable[[], None] | None = None) -> None:
    """Wait until this NPU has finished all queued work. Raises GroupError after `deadline` (monotonic seconds).

    If a rank has exited, NPU collectives that include this rank never end, and a plain synchronize would hang.
    `look` is called about once a second, and can raise an error to abort the wait.
    """
    import torch

    event = torch.npu.Event()
    event.record()
    _poll(event.query, deadline, look)


def finish(work: Work, timeout: float, look: Callable[[], None] | None = None) -> None:
    """Wait until a collective is done. Raises GroupError after `timeout` seconds, and RuntimeError if the collective
    fails.

    `look` is called about once a second, and can raise an error to abort the wait. torch_npu's own `wait` is not
    enough: it blocks only the NPU's stream, so this process would hang later, when it reads a result.
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
                found="this NPU did not finish its broadcasts in time, because another rank has died or is hanging",
                fix="check the errors of the other ranks",
            )
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)
