"""The c10d backend `hccl`: made of gloo, over loopback."""

from __future__ import annotations

import os
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
