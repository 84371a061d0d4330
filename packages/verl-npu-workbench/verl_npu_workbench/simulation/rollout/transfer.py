"""Replaces the parts of vLLM and vllm-ascend that verl's HCCL checkpoint engine needs, if neither package is
installed.

From v0.7.1 on, this checkpoint engine sends weights to rollouts on separate NPUs. It needs two things: a process group
of vLLM that is outside torch's default group, and a communicator of vllm-ascend on this group. Here, torch's own
process group over `hccl` replaces both.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType

import torch
from torch.distributed import BroadcastOptions, ProcessGroup, TCPStore, Work

from verl_npu.features.weight_sync.transport import communicator, messages

_VLLM = "vllm"
_GROUPS = "vllm.distributed.utils"
_ENGINE = "verl.checkpoint_engine.hccl_checkpoint_engine"
_TIMEOUT = 300.0
"""The seconds that the ranks wait for each other. Upstream's own group has the same limit."""


class Communicator:
    """The part of vllm-ascend's PyHcclCommunicator that verl calls.

    As on a real NPU, a broadcast is complete only after the NPU has been synchronized. In the meantime, verl already
    fills its second buffer.
    """

    disabled = False

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        self.comm = group
        self.rank, self.world_size = group.rank(), group.size()
        self.device = device
        self._broadcast: Work | None = None

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks."""
        total = tensor.clone()
        self.comm.allreduce([total]).wait()
        return total

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """Start a broadcast from rank `src` into `tensor`."""
        options = BroadcastOptions()
        options.rootRank = src
        # An operation without an owner would not be waited for.
        self._broadcast = self.comm.broadcast([tensor], options)

    def destroyComm(self, comm: ProcessGroup) -> None:
        """Destroy the group."""
        communicator.destroy(comm)


def make_group(
    master_address: str, master_port: int, rank: int, world_size: int, device: int | str | torch.device
) -> Communicator:
    """Return a communicator for the ranks that connect through this address. The communicator transfers tensors on
    `device`.

    Rank 0 listens only at this address. verl provides no secret, so anybody who can reach the port can join.
    """
    if rank == 0:
        store = messages.serve(master_address, master_port, _TIMEOUT)
    else:
        store = TCPStore(master_address, master_port, world_size, False, timedelta(seconds=_TIMEOUT))
    group = communicator.connect("checkpoint_engine", store, rank, range(world_size), _TIMEOUT)
    return Communicator(group, torch.device("npu", device) if isinstance(device, int) else torch.device(device))


def offer_group(distributed: ModuleType) -> None:
    """Make `verl.utils.distributed` use `make_group`, unless vLLM is installed."""
    if hasattr(distributed, "stateless_init_process_group") and not _has_vllm():
        vars(distributed)["stateless_init_process_group"] = make_group


def offer_checkpoint_engine(package: ModuleType) -> None:
    """Make the HCCL checkpoint engine available in `verl.checkpoint_engine`. Without vLLM, the package itself cannot
    import this engine."""
    if _has_vllm() or getattr(package, "HCCLCheckpointEngine", None) is not None:
        return
    if importlib.util.find_spec(_ENGINE) is None:
        return
    with _named(_GROUPS, "StatelessProcessGroup"):
        vars(package)["HCCLCheckpointEngine"] = importlib.import_module(_ENGINE).HCCLCheckpointEngine


def _has_vllm() -> bool:
    known = sys.modules.get(_VLLM)
    # The module that `_named` makes has no spec.
    return importlib.util.find_spec(_VLLM) is not None if known is None else known.__spec__ is not None


@contextlib.contextmanager
def _named(module: str, member: str) -> Iterator[None]:
    """Make a module with one name importable inside the `with` block, because an annotation needs this name."""
    parts = module.split(".")
    names = [".".join(parts[: count + 1]) for count in range(len(parts))]
    for name in names:
        sys.modules[name] = ModuleType(name)
    vars(sys.modules[module])[member] = ProcessGroup
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
