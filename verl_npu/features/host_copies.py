"""Patches that wait for copies between NPUs and the host. They concern tensordict's batches, which verl uses to pass
all data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..registry.patch import Feature
from ..registry.source.probe import AnyOf, Calls, Reads, Sets

if TYPE_CHECKING:
    import torch

host_copies = Feature("host_copies", "The host reads data copied from an NPU only after the copy has finished.")


Batch = TypeVar("Batch", bound="Movable")
_BATCH = "tensordict.base:TensorDictBase"
_WHY = "tensordict before 0.10 starts copying a batch to the host, then waits only for CUDA or MPS. The host reads "
_WHY += "old memory contents: log-probabilities, rewards, and losses are wrong, without an error."
_LINK = "https://github.com/volcengine/verl/pull/3222"


class Movable(Protocol):
    """A batch of tensors. `device` is None if the tensors are on different devices."""

    @property
    def device(self) -> torch.device | None: ...


@host_copies.wrap(
    f"{_BATCH}._sync_all",
    why=_WHY,
    how="When tensordict waits for its copies, it also waits for the NPU.",
    link=_LINK,
    # From v0.6.1 on, verl puts its own function there.
    retired_by=AnyOf(
        Sets("verl", "TensorDictBase._sync_all"), Calls(f"{_BATCH}._sync_all", "_get_available_device_type")
    ),
    requires=Reads(f"{_BATCH}._sync_all", "_has_cuda"),
)
def wait_for_batch_copies(original: Callable[[Batch], None], batch: Batch) -> None:
    """Wait for all copies that this process has started between NPUs and the host."""
    original(batch)
    _wait()


@host_copies.wrap(
    f"{_BATCH}._to_consolidated",
    why=_WHY + " A separate function copies a batch that was consolidated into one tensor.",
    how="The function returns a consolidated batch only after the NPU has copied it, unless the caller asked not to "
    "wait.",
    link=_LINK,
    retired_by=Calls(f"{_BATCH}._to_consolidated", "_get_available_device_type"),
    requires=Reads(f"{_BATCH}._to_consolidated", "non_blocking"),
)
def wait_for_consolidated_batch_copies(
    original: Callable[..., Batch], batch: Batch, *, non_blocking: bool | None, **settings: object
) -> Batch:
    """Copy a batch to another device. Wait for the copy, unless `non_blocking` is true."""
    moved = original(batch, non_blocking=non_blocking, **settings)
    if not non_blocking:
        _wait()
    return moved


def _wait() -> None:
    import torch

    # A compiler traces tensordict with tensors without data: there is nothing to wait for.
    if not torch.compiler.is_compiling() and torch.npu.is_initialized():
        torch.npu.synchronize()
