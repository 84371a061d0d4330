"""What a plan asks of a rank's workers, whatever the revision of verl."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from ...virtual.device.extension import extension
from ..phase import Holder, Phase

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SleepingRollout", "Workers"]


class Workers(Protocol):
    """The roles of one rank."""

    @property
    def not_shown(self) -> Mapping[Phase, str]:
        """What one rank alone cannot do, and why."""

    def load(self) -> None:
        """Make the models and optimizers."""

    def step(self) -> Mapping[Phase, Callable[[], object]]:
        """Return the phases of a step, in its order, as what does them."""

    def hand_over(self) -> None:
        """Give the weights to the rollout, as after a step."""

    def checkpoint(self, folder: str) -> None:
        """Save as the trainer does."""


class SleepingRollout:
    """In place of a rollout engine: it takes the memory of its weights when it wakes up, and drops what it is given.

    The memory of its key-value cache is what is left, and so it is not taken here (`verl_npu.plan.rollout`).
    """

    sleep_level = 1

    def __init__(self, weights: int) -> None:
        self._bytes = weights
        self._weights: Tensor | None = None

    async def resume(self, tags: Sequence[str]) -> None:
        """Take the memory of the weights."""
        import torch

        if "weights" in tags and self._bytes:
            self._weights = torch.empty(self._bytes, dtype=torch.int8, device="npu")
            extension().mark_in_ledger(self._weights.untyped_storage().data_ptr(), Holder.ENGINE.number)

    async def release(self) -> None:
        """Give it back."""
        self._weights = None

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]], **_: object) -> None:
        """Take one tensor after the other, as the engine does that copies each."""
        for _name, _weight in weights:
            pass
