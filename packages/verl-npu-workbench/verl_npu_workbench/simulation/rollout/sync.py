"""The engine behind verl's synchronous rollout interface (v0.6.1): it generates one batch at a time in the worker."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from verl import DataProto
from verl.workers.rollout.base import BaseRollout

from .answering import Answering
from .engine import ModelSettings, RolloutSettings, adapter_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class VirtualRollout(BaseRollout):  # type: ignore[misc]  # verl carries no types
    """Generates with its own model. If `load_format` is `dummy`, the weights come from `update_weights`."""

    def __init__(self, config: RolloutSettings, model_config: ModelSettings, device_mesh: DeviceMesh) -> None:
        super().__init__(config, model_config, device_mesh)
        rank = int(os.environ.get("RANK", "0"))
        self._answering = Answering(self.config, self.model_config, device_mesh, rank)
        self._weights = self._answering.weights
        self.engine = self._answering.engine
        """The engine; None if another rank of the replica has it."""

    async def resume(self, tags: list[str]) -> None:
        """Do nothing, because this engine never frees its memory."""

    async def release(self) -> None:
        """Release the weights, as an engine does when it goes to sleep. The next generation requires a new weight
        sync."""
        self._weights.release()

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        peft_config: object = None,
        base_sync_done: bool = False,
        **kwargs: object,
    ) -> None:
        """Copy the trainer's weights or its adapter into the engine's model.

        Raises RolloutError if the weights do not match the model.
        """
        if peft_config and base_sync_done:
            self._weights.adapt(weights, adapter_of(peft_config))
        else:
            self._weights.take(weights)
            self._weights.complete()

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Generate one response for each row. The trainer has already repeated each prompt n times.

        Raises RolloutError if no weights have been received since the weights were last released.
        """
        return self._answering.answer(prompts)
