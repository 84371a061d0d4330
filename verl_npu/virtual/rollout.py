"""A rollout engine for virtual NPUs: transformers' `generate` behind verl's own rollout contract.

verl 0.6 has no engine that runs on a CPU: its vLLM range ends at 0.11, and its HF rollout is no longer registered.
Never used on real NPUs: `register` refuses there.
"""

from __future__ import annotations

import copy
import gc
import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM, GenerationConfig
from verl import DataProto
from verl.utils.torch_functional import get_response_mask
from verl.workers.rollout.base import BaseRollout

from verl_npu.virtual import loading
from verl_npu.virtual.errors import TorchError

NAME = "virtual"
MODE = "sync"


class VirtualRollout(BaseRollout):  # type: ignore[misc]  # verl carries no types
    """Generates with a model of its own, whose weights come only through `update_weights`.

    Raises ValueError for a parallel layout or a model that this engine cannot serve.
    """

    def __init__(self, config: Any, model_config: Any, device_mesh: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        for key in ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size"):
            size = self.config.get(key, 1)
            if size != 1:
                raise ValueError(
                    f"verl-npu: the virtual rollout engine holds a whole model per rank: rollout.{key} must be 1, "
                    f"found {size}. Set actor_rollout_ref.rollout.{key}=1"
                )
        if getattr(self.model_config, "lora_rank", 0):
            raise ValueError(
                "verl-npu: the virtual rollout engine takes whole weights only: model.lora_rank must be 0, "
                f"found {self.model_config.lora_rank}. Set actor_rollout_ref.model.lora_rank=0"
            )
        self._pad_token_id: int = self.model_config.tokenizer.pad_token_id
        # Which attention the trainer uses is the trainer's business: a copy, so that its config stays as it is.
        hf_config = copy.deepcopy(self.model_config.hf_config)
        dtype = getattr(torch, self.config.dtype)
        model = AutoModelForCausalLM.from_config(hf_config, torch_dtype=dtype, attn_implementation="sdpa")
        self._model = model.to(torch.device("npu", torch.npu.current_device())).eval().requires_grad_(False)
        # generate() would mix the checkpoint's sampling defaults into ours.
        self._model.generation_config = GenerationConfig()
        self._has_weights = False
        # verl collects garbage three times a step to return device memory. Over the half million objects of the loaded
        # libraries that is most of a small step on a CPU core: what exists by now stays, and is not walked again.
        gc.collect()
        gc.freeze()
        if int(os.environ.get("RANK", "0")) == 0:
            print("verl-npu: SIMULATED: virtual rollout engine (transformers' generate on the CPU)", file=sys.stderr)

    async def resume(self, tags: list[str]) -> None:
        """Take memory back before weights or a cache are handed over: here it was never given up."""

    async def release(self) -> None:
        """Give up the weights, as an engine that sleeps does: the next generation needs a new hand-over."""
        self._has_weights = False

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], **kwargs: Any) -> None:
        """Copy the trainer's weights into this engine's own model; raises ValueError when they do not fit it."""
        own: dict[str, torch.Tensor] = self._model.state_dict()
        seen: set[int] = set()
        for name, value in weights:
            if name not in own:
                raise ValueError(f"verl-npu: virtual rollout: the model has no weight {name}, which arrived")
            if own[name].shape != value.shape:
                raise ValueError(
                    f"verl-npu: virtual rollout: weight {name}: expected the shape {tuple(own[name].shape)}, "
                    f"found {tuple(value.shape)}"
                )
            own[name].copy_(value.detach())
            seen.add(own[name].data_ptr())
        # By storage: tied weights have two names and arrive under one.
        missing = sorted(name for name, value in own.items() if value.data_ptr() not in seen)
        if missing:
            raise ValueError(f"verl-npu: virtual rollout: {len(missing)} weights never arrived, first {missing[0]}")
        self._has_weights = True

    def _sampling(self, meta: dict[str, Any]) -> dict[str, Any]:
        if not meta.get("do_sample", self.config.do_sample):
            return {"do_sample": False}
        source = self.config.val_kwargs if meta.get("validate", False) else self.config
        if source.temperature == 0:
            return {"do_sample": False}
        # vLLM's -1 is transformers' 0: no limit.
        return {
            "do_sample": True,
            "temperature": source.temperature,
            "top_p": source.top_p,
            "top_k": max(0, source.top_k),
        }

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Answer each row once: the trainer has already repeated the prompts n times.

        Raises RuntimeError when no weights were handed over since the last release.
        """
        if not self._has_weights:
            raise RuntimeError("verl-npu: virtual rollout: asked to generate before update_weights gave it weights")
        ids, mask = prompts.batch["input_ids"], prompts.batch["attention_mask"]
        eos = prompts.meta_info["eos_token_id"]
        length = int(self.config.response_length)
        sampling = self._sampling(prompts.meta_info)
        with_log_probs = bool(self.config.calculate_log_probs)
        generation_config = GenerationConfig(
            max_new_tokens=length,
            eos_token_id=None if self.config.ignore_eos else eos,
            pad_token_id=self._pad_token_id,
            return_dict_in_generate=True,
            output_logits=with_log_probs,
            **sampling,
        )
        with torch.no_grad():
            result = self._model.generate(input_ids=ids, attention_mask=mask, generation_config=generation_config)
        # generate() stops when every row has ended.
        responses = _pad_right(result.sequences[:, ids.shape[1] :], length, self._pad_token_id)
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
        if with_log_probs:
            logits = torch.stack(result.logits, dim=1).float() / sampling.get("temperature", 1.0)
            chosen = responses[:, : logits.shape[1], None]
            log_probs = logits.log_softmax(dim=-1).gather(-1, chosen).squeeze(-1)
            log_probs = _pad_right(log_probs, length, -1.0)
            batch["rollout_log_probs"] = log_probs.masked_fill(response_mask == 0, -1.0)
        extra = {key: value for key, value in prompts.non_tensor_batch.items() if key != "raw_prompt_ids"}
        return DataProto(batch=batch, non_tensor_batch=extra)


def _pad_right(rows: torch.Tensor, length: int, value: float) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (0, length - rows.shape[1]), value=value)


def register(base_module: ModuleType) -> None:
    """Enter the engine into verl's rollout registry as ("virtual", "sync").

    A verl without that registry has a working engine of its own and gets none. Raises RuntimeError on real NPUs.
    """
    try:
        loading.extension()
    except TorchError as error:
        raise RuntimeError(
            "verl-npu: the virtual rollout engine works on virtual NPUs only, and none is loaded. "
            "Use actor_rollout_ref.rollout.name=vllm on real NPUs, or set VERL_NPU_VIRTUAL=<number>"
        ) from error
    registry: dict[tuple[str, str], str] | None = getattr(base_module, "_ROLLOUT_REGISTRY", None)
    if registry is not None:
        registry[(NAME, MODE)] = f"{__name__}.{VirtualRollout.__qualname__}"
