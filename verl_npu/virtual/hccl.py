"""The c10d backend `hccl`: made of gloo, over loopback or the network interface that is asked for."""

from __future__ import annotations

import fcntl
import functools
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import ModuleType
from typing import Any

NAME = "hccl"
_SIOCGIFADDR = 0x8915  # netdevice(7)


def register(torch: ModuleType) -> None:
    """Register `hccl` for the device `npu`, where this torch was built with torch.distributed."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    distributed.Backend.register_backend(NAME, _create, devices=["npu"])
    distributed.is_hccl_available = lambda: True  # as torch_npu names it
    distributed.gather = _as_torch_npu_takes_it(distributed.gather)
    if not hasattr(distributed.distributed_c10d.Backend, "supports_coalescing"):
        _batch_as_one(distributed)


def _as_torch_npu_takes_it(original: Callable[..., Any]) -> Callable[..., Any]:
    # torch_npu has put one of its own, without group_dst, in the place of torch's up to 2.10.
    @functools.wraps(original)
    def gather(tensor: Any, gather_list: Any = None, dst: int = 0, group: Any = None, async_op: bool = False) -> Any:
        return original(tensor, gather_list, dst, group, async_op)

    return gather


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
    name = interface(os.environ, list(_addressed()))
    # Loopback, unless told otherwise: a machine's own name may resolve to nothing, or to a VPN.
    return gloo.create_device(interface=name) if name else gloo.create_device(hostname="127.0.0.1")


def _addressed() -> Iterator[str]:
    """The network interfaces that have an IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                yield name


def interface(environment: Mapping[str, str], present: Sequence[str]) -> str | None:
    """Which of the network interfaces that are `present` is asked for; None for loopback.

    `HCCL_SOCKET_IFNAME` is read as HCCL documents it: names or, without `=`, their beginnings, separated by commas; a
    `^` before them takes all others. A cluster's names that this machine does not have are not an error: a recipe is
    tried on a laptop with the settings that it has on the cluster. Then `GLOO_SOCKET_IFNAME` counts, gloo's own.
    """
    asked = environment.get("HCCL_SOCKET_IFNAME", "")
    others, exact = asked.startswith("^"), asked.removeprefix("^").startswith("=")
    names = [name for name in asked.removeprefix("^").removeprefix("=").split(",") if name]
    for found in present:
        if names and found != "lo":
            named = any(found == name if exact else found.startswith(name) for name in names)
            if named is not others:
                return found
    return environment.get("GLOO_SOCKET_IFNAME", "").split(",")[0] or None
