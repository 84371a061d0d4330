"""The engine behind verl's synchronous rollout contract (v0.6.1): it generates in the worker, a batch at a time."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypedDict

import torch
from tensordict import TensorDict
from verl import DataProto
from verl.utils.torch_functional import get_response_mask
from verl.workers.rollout.base import BaseRollout

from .engine import ModelSettings, RolloutSettings, Sampling, check_layout, engine_of, sampling

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["VirtualRollout"]


class _Meta(TypedDict, total=False):
    """What is used of a batch's meta_info."""

    validate: bool
    do_sample: bool


class VirtualRollout(BaseRollout):  # type: ignore[misc]  # verl carries no types
    """Generates with a model of its own, whose weights come through `update_weights` if `load_format` is dummy.

    Raises RolloutError for a parallel layout or a model that this engine cannot serve.
    """

    def __init__(self, config: RolloutSettings, model_config: ModelSettings, device_mesh: DeviceMesh) -> None:
        super().__init__(config, model_config, device_mesh)
        check_layout(self.config, self.model_config)
        self._pad_token_id: int = self.model_config.tokenizer.pad_token_id
        first = int(os.environ.get("RANK", "0")) == 0
        self._engine = engine_of(self.config, self.model_config, announce=first)
        # verl collects garbage three times a step to return device memory. Over the half million objects of the loaded
        # libraries that is most of a small step on a CPU core: what exists by now stays, and is not walked again.
        gc.collect()
        gc.freeze()

    async def resume(self, tags: list[str]) -> None:
        """Take memory back before weights or a cache are handed over: here it was never given up."""

    async def release(self) -> None:
        """Give up the weights, as an engine that sleeps does: the next generation needs a new hand-over."""
        self._engine.release()

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], **kwargs: object) -> None:
        """Copy the trainer's weights into this engine's own model; raises RolloutError if they do not fit it."""
        self._engine.update(weights)

    def _sampling(self, meta: _Meta) -> Sampling:
        source = self.config.val_kwargs if meta.get("validate", False) else self.config
        do_sample = meta.get("do_sample", self.config.do_sample)
        return sampling(do_sample, source.temperature, source.top_p, source.top_k)

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Answer each row once: the trainer has already repeated the prompts n times.

        Raises RolloutError if no weights were handed over since the last release.
        """
        ids, mask = prompts.batch["input_ids"], prompts.batch["attention_mask"]
        eos = prompts.meta_info["eos_token_id"]
        length = int(self.config.response_length)
        answers = self._engine.generate(
            ids,
            mask,
            length,
            None if self.config.ignore_eos else eos,
            self._sampling(prompts.meta_info),
            bool(self.config.calculate_log_probs),
        )
        # generate() stops when every row has ended.
        responses = _pad_right(answers.responses, length, self._pad_token_id)
        response_mask = get_response_mask(response_id=responses, eos_token=eos, dtype=mask.dtype)
        positions = prompts.batch["position_ids"]
        steps = torch.arange(1, length + 1, device=positions.device)
        batch = TensorDict(
            {
                "prompts": ids,
                "responses": responses,
                "input_ids": torch.cat([ids, responses], dim=-1),
                "attention_mask": torch.cat([mask, response_mask], dim=-1),
                "position_ids": torch.cat([positions, positions[..., -1:] + steps], dim=-1),
            },
            batch_size=ids.shape[0],
        )
        if answers.log_probs is not None:
            log_probs = _pad_right(answers.log_probs, length, -1.0)
            batch["rollout_log_probs"] = log_probs.masked_fill(response_mask == 0, -1.0)
        extra = {key: value for key, value in prompts.non_tensor_batch.items() if key != "raw_prompt_ids"}
        return DataProto(batch=batch, non_tensor_batch=extra)


def _pad_right(rows: torch.Tensor, length: int, value: float) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (0, length - rows.shape[1]), value=value)
