"""A model that generates: transformers' `generate` on one virtual NPU, with the weights that it is given."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypedDict

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from ...errors import RolloutError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

__all__ = [
    "Answers",
    "Engine",
    "ModelSettings",
    "RolloutSettings",
    "Sampling",
    "check_layout",
    "engine_of",
    "sampling",
]

PARALLEL = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")


class RolloutSettings(Protocol):
    """What is used of verl's section `rollout`."""

    dtype: str
    load_format: str

    def get(self, key: str, default: int) -> int: ...


class ModelSettings(Protocol):
    """What is used of verl's section `model`."""

    hf_config: PretrainedConfig
    local_path: str
    tokenizer: PreTrainedTokenizerBase


class Sampling(TypedDict, total=False):
    """The sampling parameters of transformers."""

    do_sample: bool
    temperature: float
    top_p: float
    top_k: int


@dataclass(frozen=True, slots=True)
class Answers:
    """What a batch of prompts was answered."""

    responses: torch.Tensor
    """(batch, new tokens), filled up with the pad token after each row's end."""
    log_probs: torch.Tensor | None
    """(batch, new tokens), fp32, of the chosen tokens at the sampling temperature."""


def check_layout(config: RolloutSettings, model_config: ModelSettings) -> None:
    """Raise RolloutError for a parallel layout or a model that this engine cannot serve."""
    for key in PARALLEL:
        size = config.get(key, 1)
        if size != 1:
            raise RolloutError(
                subject=f"rollout.{key} with the virtual rollout engine, which holds a whole model on each rank",
                expected="1",
                found=str(size),
                fix=f"set actor_rollout_ref.rollout.{key}=1",
            )
    rank = getattr(model_config, "lora_rank", 0)
    if rank:
        raise RolloutError(
            subject="model.lora_rank with the virtual rollout engine, which takes whole weights only",
            expected="0",
            found=str(rank),
            fix="set actor_rollout_ref.model.lora_rank=0",
        )


class Engine:
    """A model of its own, whose weights come from a trainer through `update`, or from a checkpoint through `load`."""

    def __init__(self, hf_config: PretrainedConfig, dtype: str, pad_token_id: int, announce: bool) -> None:
        # Which attention the trainer uses is the trainer's business: a copy, so that its config stays as it is.
        config = copy.deepcopy(hf_config)
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation="sdpa")
        self.device = torch.device("npu", torch.npu.current_device())
        self._model = model.to(self.device).eval().requires_grad_(False)
        # generate() would mix the checkpoint's sampling defaults into ours.
        self._model.generation_config = GenerationConfig()
        self._pad_token_id = pad_token_id
        self._has_weights = False
        self._arrived: set[int] = set()
        if announce:
            print("verl-npu: SIMULATED: virtual rollout engine (transformers' generate on the CPU)", file=sys.stderr)

    def release(self) -> None:
        """Give up the weights, as an engine that sleeps does: the next generation needs a new hand-over."""
        self._has_weights = False

    def load(self, path: str) -> None:
        """Copy a checkpoint's weights, as engines do whose `load_format` is not dummy."""
        found = AutoModelForCausalLM.from_pretrained(path, dtype=self._model.dtype)
        self.update(found.state_dict().items())

    def update(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy a whole set of weights; raises RolloutError if they do not fit the model."""
        self.take(weights)
        self.complete()

    def take(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy a part of the weights; until `complete` nothing is generated with them."""
        self._has_weights = False
        own: dict[str, torch.Tensor] = self._model.state_dict()
        for name, value in weights:
            if name not in own:
                raise RolloutError(
                    subject="weights for the virtual rollout engine",
                    expected="weights that its model has",
                    found=f"the weight {name}, which it has not",
                    fix="start both from the same model",
                )
            if own[name].shape != value.shape:
                raise RolloutError(
                    subject=f"the weight {name} for the virtual rollout engine",
                    expected=f"the shape {tuple(own[name].shape)}",
                    found=str(tuple(value.shape)),
                    fix="start both from the same model",
                )
            own[name].copy_(value.detach())
            self._arrived.add(own[name].data_ptr())

    def complete(self) -> None:
        """End a hand-over; raises RolloutError if a weight never arrived."""
        # By storage: tied weights have two names and arrive under one.
        own = self._model.state_dict()
        missing = sorted(name for name, value in own.items() if value.data_ptr() not in self._arrived)
        self._arrived.clear()
        if missing:
            raise RolloutError(
                subject="weights for the virtual rollout engine",
                expected=f"all {len(own)} of its model",
                found=f"that {len(missing)} never arrived, the first of them {missing[0]}",
                fix="hand over every weight before `complete`",
            )
        self._has_weights = True

    def generate(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        length: int,
        eos: int | list[int] | None,
        sampling: Sampling,
        with_log_probs: bool,
    ) -> Answers:
        """Answer prompts (batch, prompt tokens), padded on the left, with at most `length` tokens each.

        Raises RolloutError if no weights were handed over since the last release.
        """
        if not self._has_weights:
            raise RolloutError(
                subject="the virtual rollout engine",
                expected="weights before it is asked to generate",
                found="that none were handed over since it started or last released them",
                fix="call update_weights first",
            )
        config = GenerationConfig(
            max_new_tokens=length,
            eos_token_id=eos,
            pad_token_id=self._pad_token_id,
            return_dict_in_generate=True,
            output_logits=with_log_probs,
            **sampling,
        )
        with torch.no_grad():
            result = self._model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        responses = result.sequences[:, ids.shape[1] :]
        log_probs = None
        if with_log_probs:
            logits = torch.stack(result.logits, dim=1).float() / sampling.get("temperature", 1.0)
            log_probs = logits.log_softmax(dim=-1).gather(-1, responses[..., None]).squeeze(-1)
        return Answers(responses, log_probs)


def engine_of(config: RolloutSettings, model_config: ModelSettings, announce: bool) -> Engine:
    """The engine of a rollout; it has a checkpoint's weights from the start if `load_format` is not dummy."""
    engine = Engine(model_config.hf_config, config.dtype, model_config.tokenizer.pad_token_id, announce)
    if config.load_format != "dummy":
        engine.load(model_config.local_path)
    return engine


def sampling(do_sample: bool, temperature: float, top_p: float, top_k: int) -> Sampling:
    """Return vLLM's sampling parameters as transformers has them."""
    if not do_sample or temperature == 0:
        return {"do_sample": False}
    # vLLM's -1 is transformers' 0: no limit.
    return {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": max(0, top_k)}
