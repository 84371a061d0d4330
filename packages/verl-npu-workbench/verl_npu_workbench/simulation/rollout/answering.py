"""Generates responses to a whole batch like verl's synchronous rollouts, which return equal lengths, masks, and
positions."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from verl import DataProto
from verl.utils.torch_functional import get_response_mask

from .engine import Engine, ModelSettings, Sampling, checker_of, engine_of, sampling
from .layout import place, share
from .prompts import Prompt
from .weights import Weights

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# vLLM's rollout removes these from a batch too.
_READ = ("raw_prompt_ids", "multi_modal_data")


class Answering:
    """One rank of a synchronous rollout.

    A replica consists of tensor-, data-, and pipeline-parallel ranks. Only the first rank of a replica runs the model,
    and it broadcasts the responses to the other ranks. The other ranks only check the weights that they receive.
    `config` is verl's `rollout` section.
    """

    def __init__(self, config: Any, model_config: ModelSettings, mesh: DeviceMesh, rank: int) -> None:
        self._config = config
        self._mesh = mesh
        own = place(config, rank)
        self.engine: Engine | None = engine_of(config, model_config, own) if own.leads else None
        self._pad_token_id = int(model_config.tokenizer.pad_token_id)
        self.weights: Weights = checker_of(config, model_config) if self.engine is None else self.engine.weights
        # verl collects garbage three times a step to return device memory. With the half million objects of the loaded
        # libraries, this takes most of a small step on one CPU core, so exclude the objects that exist by now.
        gc.collect()
        gc.freeze()

    def _sampling(self, meta: Mapping[str, Any]) -> Sampling:
        source = self._config.val_kwargs if meta.get("validate", False) else self._config
        do_sample = meta.get("do_sample", self._config.do_sample)
        penalty = float(self._config.get("repetition_penalty", 1))
        return sampling(do_sample, source.temperature, source.top_p, source.top_k, repetition_penalty=penalty)

    def answer(self, prompts: DataProto) -> DataProto:
        """Generate one response for each row. The trainer has already repeated each prompt n times.

        Raises RolloutError if no weights have been received since the weights were last released.
        """
        ids, mask = prompts.batch["input_ids"], prompts.batch["attention_mask"]
        eos = prompts.meta_info["eos_token_id"]
        length = int(self._config.response_length)
        responses = ids.new_empty((ids.shape[0], length))
        with_log_probs = bool(self._config.calculate_log_probs)
        log_probs = torch.empty(responses.shape, dtype=torch.float32, device=ids.device) if with_log_probs else None
        if self.engine is not None:
            answers = self.engine.generate(
                _read(prompts),
                length,
                None if self._config.ignore_eos else eos,
                self._sampling(prompts.meta_info),
                with_log_probs,
            )
            # generate() stops as soon as all rows have ended.
            responses = _pad_right(answers.responses, length, self._pad_token_id).to(ids.device)
            if answers.log_probs is not None:
                log_probs = _pad_right(answers.log_probs, length, -1.0).to(ids.device)
        responses = share(responses, self._mesh)
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
            log_probs = share(log_probs, self._mesh)
            batch["rollout_log_probs"] = log_probs.masked_fill(response_mask == 0, -1.0)
        extra = {key: value for key, value in prompts.non_tensor_batch.items() if key not in _READ}
        return DataProto(batch=batch, non_tensor_batch=extra)


def _read(prompts: DataProto) -> list[Prompt]:
    seen = prompts.non_tensor_batch.get("multi_modal_data")
    if seen is None:
        rows = zip(prompts.batch["input_ids"].tolist(), prompts.batch["attention_mask"].tolist(), strict=True)
        return [Prompt([token for token, kept in zip(*row, strict=True) if kept]) for row in rows]
    # The tokens of the text, with one placeholder per image.
    return [
        Prompt(list(raw), _listed(data.get("image")), _listed(data.get("video")))
        for raw, data in zip(prompts.non_tensor_batch["raw_prompt_ids"], seen, strict=True)
    ]


def _listed(items: object) -> list[object]:
    return [] if items is None else list(items) if isinstance(items, list) else [items]


def _pad_right(rows: torch.Tensor, length: int, value: float) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (0, length - rows.shape[1]), value=value)
