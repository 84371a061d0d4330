"""An HCCL communicator beside the default group."""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ..errors import GroupError

__all__ = ["broadcast", "connect", "destroy", "prove", "wait_for_device"]

BACKEND = "hccl"

_numbers = itertools.count()


def connect(name: str, store: Any, rank: int, movers: Sequence[int], timeout: float) -> Any:
    """Make a process group over `movers` beside the default one, with or without there being one.

    torch has no public function for ranks that are not all of the default group; this internal one serves
    `init_process_group` and `new_group` themselves, and is what RL frameworks call for it.
    """
    from torch.distributed import Backend, PrefixStore
    from torch.distributed import distributed_c10d as c10d

    helper = c10d._new_process_group_helper
    # torch 2.6 renamed it.
    option = "backend_options" if "backend_options" in inspect.signature(helper).parameters else "pg_options"
    arguments: dict[str, Any] = {option: None}
    made, _ = helper(
        len(movers),
        movers.index(rank),
        [],
        Backend(BACKEND),
        PrefixStore(BACKEND, store),
        group_name=f"verl_npu/weight_sync/{name}/{next(_numbers)}",
        timeout=timedelta(seconds=timeout),
        **arguments,
    )
    c10d._world.pg_group_ranks[made] = {mover: mover for mover in range(len(movers))}
    return made


def destroy(communicator: Any) -> None:
    """Take a communicator down."""
    import torch.distributed

    torch.distributed.destroy_process_group(communicator)


def broadcast(communicator: Any, tensor: Any, timeout: float) -> Any:
    """Start a broadcast from rank 0; the work that is returned has `wait(timedelta)`."""
    from torch.distributed import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = 0
    options.timeout = timedelta(seconds=timeout)
    return communicator.broadcast([tensor], options)


def prove(communicator: Any, source: bool, device: Any, timeout: float) -> None:
    """Move one number: a communicator that is disabled or not connected must show now, not as stale weights.

    Raises GroupError where it did not arrive.
    """
    import torch

    told = 20_260
    number = torch.full((1,), told if source else 0, dtype=torch.int32, device=device)
    broadcast(communicator, number, timeout).wait(timedelta(seconds=timeout))
    wait_for_device(time.monotonic() + timeout)
    if int(number.item()) != told:
        raise GroupError(f"{BACKEND} said that it broadcast and did not: see HCCL's own log")


def wait_for_device(deadline: float) -> None:
    """Wait until this NPU has done all that was asked of it; raises GroupError after `deadline` (monotonic).

    A collective whose peer is gone never ends on an NPU, and a plain synchronize would hang with it.
    """
    import torch

    event = torch.npu.Event()
    event.record()
    pause = 1e-5
    while not event.query():
        if time.monotonic() > deadline:
            raise GroupError("this NPU did not finish in time: a rank of the broadcast is gone or hangs")
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)
