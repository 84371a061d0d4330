"""The c10d backend `hccl`: made of gloo, over loopback."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

NAME = "hccl"


def register(torch: ModuleType) -> None:
    """Register `hccl` for the device `npu`, where this torch was built with torch.distributed."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    distributed.Backend.register_backend(NAME, _create, devices=["npu"])
    distributed.is_hccl_available = lambda: True  # as torch_npu names it
    distributed.gather = _as_torch_npu_takes_it(distributed.gather)


def _as_torch_npu_takes_it(original: Callable[..., Any]) -> Callable[..., Any]:
    # torch_npu has put one of its own, without group_dst, in the place of torch's up to 2.10.
    @functools.wraps(original)
    def gather(tensor: Any, gather_list: Any = None, dst: int = 0, group: Any = None, async_op: bool = False) -> Any:
        return original(tensor, gather_list, dst, group, async_op)

    return gather


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """One process group's backend; c10d calls this."""
    import torch
    from torch.distributed import PrefixStore, ProcessGroupGloo

    from verl_npu.virtual.loading import extension

    options = ProcessGroupGloo._Options()
    options._timeout = timeout
    options._devices = [_transport(ProcessGroupGloo)]
    gloo = ProcessGroupGloo(PrefixStore(NAME, store), rank, size, options)
    compiled = extension()
    # While the first group is made there is no other: its ranks are the program's.
    compiled.set_rank(torch.distributed.get_rank() if torch.distributed.is_initialized() else rank)
    return compiled.HcclBackend(rank, size, gloo)


def _transport(gloo: Any) -> Any:
    # Loopback, unless told otherwise: a machine's own name may resolve to nothing, or to a VPN.
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    if interface:
        return gloo.create_device(interface=interface.split(",")[0])
    return gloo.create_device(hostname="127.0.0.1")
