"""The c10d backend `hccl`: made of gloo, over loopback."""

from __future__ import annotations

import functools
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
    if not hasattr(distributed.distributed_c10d.Backend, "supports_coalescing"):
        _batch_as_one(distributed)


def _batch_as_one(distributed: Any) -> None:
    """Run an NPU's batch of messages as one, as torch_npu does where torch (2.5) asks whether the device is cuda. Its
    pipelines wait for the last of a batch only."""
    c10d = distributed.distributed_c10d
    original = c10d.batch_isend_irecv

    @functools.wraps(original)
    def batch_isend_irecv(p2p_op_list: list[Any]) -> Any:
        if not p2p_op_list or p2p_op_list[0].tensor.device.type != "npu":
            return original(p2p_op_list)
        c10d._check_p2p_op_list(p2p_op_list)
        first = p2p_op_list[0]
        with c10d._coalescing_manager(first.group, first.tensor.device, async_ops=True) as batch:
            for message in p2p_op_list:
                message.op(message.tensor, message.peer, message.group, message.tag)
        return batch.works

    c10d.batch_isend_irecv = distributed.batch_isend_irecv = batch_isend_irecv


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
