"""Copies of batches between NPUs and the host are waited for; verl hands all data around in tensordict's batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..registry.patch import Feature
from ..registry.source.probe import AnyOf, Calls, Reads, Sets

if TYPE_CHECKING:
    import torch

__all__ = [
    "host_copies",
    "wait_for_batch_copies",
    "wait_for_consolidated_batch_copies",
]


host_copies = Feature("host_copies", "Copies from an NPU to the host are finished before the host reads them.")


Batch = TypeVar("Batch", bound="Movable")
_BATCH = "tensordict.base:TensorDictBase"
_WHY = "tensordict before 0.10 starts the copies of a batch to the host and then waits for CUDA or MPS only. The host "
_WHY += "reads what was in its memory before: log probabilities, rewards and losses are wrong, without an error."
_LINK = "https://github.com/volcengine/verl/pull/3222"


class Movable(Protocol):
    """A batch whose tensors are all on one device, or on several, which is None."""

    @property
    def device(self) -> torch.device | None: ...


@host_copies.wrap(
    f"{_BATCH}._sync_all",
    why=_WHY,
    how="Where tensordict waits for all copies, it waits for the NPU as well.",
    link=_LINK,
    # From v0.6.1 on, verl puts a function of its own there.
    retired_by=AnyOf(
        Sets("verl", "TensorDictBase._sync_all"), Calls(f"{_BATCH}._sync_all", "_get_available_device_type")
    ),
    requires=Reads(f"{_BATCH}._sync_all", "_has_cuda"),
)
def wait_for_batch_copies(original: Callable[[Batch], None], batch: Batch) -> None:
    """Wait for all copies of this process that are under way."""
    original(batch)
    _wait()


@host_copies.wrap(
    f"{_BATCH}._to_consolidated",
    why=_WHY + " A batch that was consolidated into one tensor is copied by a function of its own.",
    how="A consolidated batch is returned once the NPU has copied it, unless the caller asked not to wait.",
    link=_LINK,
    retired_by=Calls(f"{_BATCH}._to_consolidated", "_get_available_device_type"),
    requires=Reads(f"{_BATCH}._to_consolidated", "non_blocking"),
)
def wait_for_consolidated_batch_copies(
    original: Callable[..., Batch], batch: Batch, *, non_blocking: bool | None, **settings: object
) -> Batch:
    """Copy a batch to another device, and wait for it unless `non_blocking`."""
    moved = original(batch, non_blocking=non_blocking, **settings)
    if not non_blocking:
        _wait()
    return moved


def _wait() -> None:
    import torch

    # A compiler traces tensordict with tensors that hold nothing: there is nothing to wait for.
    if not torch.compiler.is_compiling() and torch.npu.is_initialized():
        torch.npu.synchronize()
