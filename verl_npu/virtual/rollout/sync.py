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

from .engine import ModelSettings, RolloutSettings, Sampling, adapter_of, checker_of, engine_of, sampling
from .layout import place, share
from .prompts import Prompt

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["VirtualRollout"]


# What vLLM takes out of a batch as well.
_READ = ("raw_prompt_ids", "multi_modal_data")


class _Meta(TypedDict, total=False):
    """What is used of a batch's meta_info."""

    validate: bool
    do_sample: bool


class VirtualRollout(BaseRollout):  # type: ignore[misc]  # verl carries no types
    """Generates with a model of its own, whose weights come through `update_weights` if `load_format` is dummy.

    Of the ranks that make a replica (tensor, data and pipeline parallel) the first has the model and gives the others
    its answers; they check the weights that come to them.
    """

    def __init__(self, config: RolloutSettings, model_config: ModelSettings, device_mesh: DeviceMesh) -> None:
        super().__init__(config, model_config, device_mesh)
        self._pad_token_id: int = self.model_config.tokenizer.pad_token_id
        own = place(self.config, int(os.environ.get("RANK", "0")))
        self._engine = engine_of(self.config, self.model_config, own) if own.leads else None
        self._weights = checker_of(self.config, self.model_config) if self._engine is None else self._engine.weights
        # verl collects garbage three times a step to return device memory. Over the half million objects of the loaded
        # libraries that is most of a small step on a CPU core: what exists by now stays, and is not walked again.
        gc.collect()
        gc.freeze()

    async def resume(self, tags: list[str]) -> None:
        """Take memory back before weights or a cache are handed over: here it was never given up."""

    async def release(self) -> None:
        """Give up the weights, as an engine that sleeps does: the next generation needs a new hand-over."""
        self._weights.release()

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        peft_config: object = None,
        base_sync_done: bool = False,
        **kwargs: object,
    ) -> None:
        """Copy the trainer's weights, or its adapter, into this engine's own model.

        Raises RolloutError if they do not fit it.
        """
        if peft_config and base_sync_done:
            self._weights.adapt(weights, adapter_of(peft_config))
        else:
            self._weights.take(weights)
            self._weights.complete()

    def _sampling(self, meta: _Meta) -> Sampling:
        source = self.config.val_kwargs if meta.get("validate", False) else self.config
        do_sample = meta.get("do_sample", self.config.do_sample)
        penalty = self.config.get("repetition_penalty", 1.0)
        return sampling(do_sample, source.temperature, source.top_p, source.top_k, repetition_penalty=penalty)

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Answer each row once: the trainer has already repeated the prompts n times.

        Raises RolloutError if no weights were handed over since the last release.
        """
        ids, mask = prompts.batch["input_ids"], prompts.batch["attention_mask"]
        eos = prompts.meta_info["eos_token_id"]
        length = int(self.config.response_length)
        responses = ids.new_empty((ids.shape[0], length))
        with_log_probs = bool(self.config.calculate_log_probs)
        log_probs = torch.empty(responses.shape, dtype=torch.float32, device=ids.device) if with_log_probs else None
        if self._engine is not None:
            answers = self._engine.generate(
                _read(prompts),
                length,
                None if self.config.ignore_eos else eos,
                self._sampling(prompts.meta_info),
                with_log_probs,
            )
            # generate() stops when every row has ended.
            responses = _pad_right(answers.responses, length, self._pad_token_id).to(ids.device)
            if answers.log_probs is not None:
                log_probs = _pad_right(answers.log_probs, length, -1.0).to(ids.device)
        responses = share(responses, self.device_mesh)
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
        if log_probs is not None:
            log_probs = share(log_probs, self.device_mesh)
            batch["rollout_log_probs"] = log_probs.masked_fill(response_mask == 0, -1.0)
        extra = {key: value for key, value in prompts.non_tensor_batch.items() if key not in _READ}
        return DataProto(batch=batch, non_tensor_batch=extra)


def _read(prompts: DataProto) -> list[Prompt]:
    seen = prompts.non_tensor_batch.get("multi_modal_data")
    if seen is None:
        rows = zip(prompts.batch["input_ids"].tolist(), prompts.batch["attention_mask"].tolist(), strict=True)
        return [Prompt([token for token, kept in zip(*row, strict=True) if kept]) for row in rows]
    # The text's tokens, with one placeholder for each image.
    return [
        Prompt(list(raw), _listed(data.get("image")), _listed(data.get("video")))
        for raw, data in zip(prompts.non_tensor_batch["raw_prompt_ids"], seen, strict=True)
    ]


def _listed(items: object) -> list[object]:
    return [] if items is None else list(items) if isinstance(items, list) else [items]


def _pad_right(rows: torch.Tensor, length: int, value: float) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (0, length - rows.shape[1]), value=value)
