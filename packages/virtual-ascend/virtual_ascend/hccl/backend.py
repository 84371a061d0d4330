"""The c10d backend `hccl`, which is built on gloo. It uses loopback, or the network interface that the user
requests."""

from __future__ import annotations

import fcntl
import functools
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Protocol

from ..device.extension import extension
from ..variables import HCCL_INTERFACE

if TYPE_CHECKING:
    import torch
    from torch.distributed import Backend, P2POp, ProcessGroup, Store, Work

NAME = "hccl"
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"  # gloo's own variable
_SIOCGIFADDR = 0x8915  # netdevice(7)
_is_alone = False


class _Gather(Protocol):
    """torch.distributed.gather with the arguments of torch_npu's gather."""

    def __call__(
        self,
        tensor: torch.Tensor,
        gather_list: list[torch.Tensor] | None = None,
        dst: int = 0,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Work | None: ...


class _Gloo(Protocol):
    """The part of ProcessGroupGloo that creates its transport device."""

    def create_device(self, *, hostname: str = "", interface: str = "") -> object: ...


def register(torch: ModuleType) -> None:
    """Register `hccl` for the device `npu`, if this torch was built with torch.distributed."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    distributed.Backend.register_backend(NAME, _create, devices=["npu"])
    distributed.is_hccl_available = lambda: True  # as torch_npu names it
    distributed.gather = _as_torch_npu_takes_it(distributed.gather)
    if not hasattr(distributed.distributed_c10d.Backend, "supports_coalescing"):
        _batch_as_one()


def _as_torch_npu_takes_it(original: _Gather) -> _Gather:
    # Up to 2.10 torch_npu replaces torch's gather with its own, which has no group_dst.
    @functools.wraps(original)
    def gather(
        tensor: torch.Tensor,
        gather_list: list[torch.Tensor] | None = None,
        dst: int = 0,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        return original(tensor, gather_list, dst, group, async_op)

    return gather


def _batch_as_one() -> None:
    """Send an NPU's batch of messages as a single message, as torch_npu does with torch 2.5.

    torch 2.5 itself does this only for CUDA, and its pipelines wait only for the last message of a batch.
    """
    from torch import distributed
    from torch.distributed import distributed_c10d as c10d

    original: Callable[[list[P2POp]], list[Work]] = c10d.batch_isend_irecv

    @functools.wraps(original)
    def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
        if not p2p_op_list or p2p_op_list[0].tensor.device.type != "npu":
            return original(p2p_op_list)
        c10d._check_p2p_op_list(p2p_op_list)
        first = p2p_op_list[0]
        with c10d._coalescing_manager(first.group, first.tensor.device, async_ops=True) as batch:
            for message in p2p_op_list:
                message.op(message.tensor, message.peer, message.group, message.tag)
        works: list[Work] = batch.works
        return works

    c10d.batch_isend_irecv = distributed.batch_isend_irecv = batch_isend_irecv


def _create(store: Store, rank: int, size: int, timeout: timedelta) -> Backend:
    """Create the backend of a process group. c10d calls this function."""
    import torch
    from torch.distributed import PrefixStore, ProcessGroupGloo

    if _is_alone:
        return extension().HcclBackend(rank, size, _alone(store, rank, size), timeout)
    options = ProcessGroupGloo._Options()
    options._timeout = timeout
    options._devices = [_transport(ProcessGroupGloo)]
    gloo = ProcessGroupGloo(PrefixStore(NAME, store), rank, size, options)
    compiled = extension()
    # While the first group is made there is no other: its ranks are the program's.
    compiled.set_rank(torch.distributed.get_rank() if torch.distributed.is_initialized() else rank)
    return compiled.HcclBackend(rank, size, gloo, timeout)


def be_alone() -> None:
    """Make this process the only real rank of every group that it creates from now on.

    The other ranks are assumed to have the same data. Plans in phantom memory use this function. See csrc/alone.h.
    """
    global _is_alone
    from torch.distributed import distributed_c10d as c10d

    class AloneGloo(metaclass=_StandIn):
        """A replacement for ProcessGroupGloo. Real gloo groups for host tensors would wait for the other ranks, which
        do not exist."""

        _Options = c10d.ProcessGroupGloo._Options
        create_device = c10d.ProcessGroupGloo.create_device
        create_default_device = c10d.ProcessGroupGloo.create_default_device

        def __new__(cls, store: Store, rank: int, size: int, *_: object, **__: object) -> Backend:
            return _alone(store, rank, size)

    _is_alone = True
    c10d.ProcessGroupGloo = AloneGloo
    c10d.rendezvous = _meet_nobody


class _StandIn(type):
    """A metaclass that accepts every backend as an instance, because c10d checks the type of each new backend."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def _meet_nobody(url: str, rank: int = -1, world_size: int = -1, **_: object) -> Iterator[tuple[Store, int, int]]:
    """Replace torch.distributed's rendezvous, because the original would wait for the other ranks."""
    from torch.distributed import HashStore

    own = rank if rank >= 0 else int(os.environ["RANK"])
    yield HashStore(), own, world_size if world_size > 0 else int(os.environ["WORLD_SIZE"])


def _alone(store: Store, rank: int, size: int) -> Backend:
    backend = extension().AloneBackend(rank, size)
    backend.options = SimpleNamespace()  # c10d stores the ranks of the group in it
    return backend


def _transport(gloo: _Gloo) -> object:
    name = interface(os.environ, list(_addressed()))
    # Loopback by default, because a machine's own name may resolve to nothing, or to a VPN.
    return gloo.create_device(interface=name) if name else gloo.create_device(hostname="127.0.0.1")


def _addressed() -> Iterator[str]:
    """Yield the names of the network interfaces that have an IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # this interface has none
                fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                yield name


def interface(environment: Mapping[str, str], present: Sequence[str]) -> str | None:
    """Choose one of the network interfaces in `present`. Return None for loopback.

    `HCCL_SOCKET_IFNAME` is interpreted as HCCL documents it: a comma-separated list of prefixes of interface names. If
    the list starts with `=`, its items are full names. A leading `^` selects all other interfaces. Names of missing
    interfaces are ignored, because users run a recipe on a laptop with the settings of a cluster. If the variable
    selects no interface, `GLOO_SOCKET_IFNAME` is used.
    """
    asked = environment.get(HCCL_INTERFACE, "")
    others, exact = asked.startswith("^"), asked.removeprefix("^").startswith("=")
    names = [name for name in asked.removeprefix("^").removeprefix("=").split(",") if name]
    for found in present:
        if names and found != "lo":
            named = any(found == name if exact else found.startswith(name) for name in names)
            if named is not others:
                return found
    return environment.get(_GLOO_INTERFACE, "").split(",")[0] or None
