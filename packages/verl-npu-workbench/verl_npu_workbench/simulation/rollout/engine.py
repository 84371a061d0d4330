"""A model that generates with transformers' `generate` on one virtual NPU, with the weights that it receives."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, cast

import torch
from transformers import GenerationConfig, StoppingCriteriaList

from verl_npu.errors import RolloutError
from verl_npu.reporting import report

from .layout import Place
from .model import build, load, text_settings
from .prompts import Processor, Prompt, Prompts
from .weights import Adapter, Weights

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

ANNOUNCEMENT = "SIMULATED: virtual rollout engine (transformers' generate on the CPU)"


class RolloutSettings(Protocol):
    """The settings in verl's `rollout` section that this engine uses."""

    dtype: str
    load_format: str

    def get(self, key: str, default: int) -> int: ...


class ModelSettings(Protocol):
    """The settings in verl's `model` section that this engine uses."""

    hf_config: PretrainedConfig
    local_path: str
    tokenizer: PreTrainedTokenizerBase


class Sampling(TypedDict, total=False):
    """The sampling parameters of transformers."""

    do_sample: bool
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float


@dataclass(frozen=True, slots=True)
class Answers:
    """The responses to a batch of prompts."""

    responses: torch.Tensor
    """[batch, new tokens]. After the end of its response, each row is filled with the pad token."""
    log_probs: torch.Tensor | None
    """[batch, new tokens], float32 log-probabilities of the chosen tokens at the sampling temperature."""


class Engine:
    """A model whose weights come from a trainer, through `weights`, or from a checkpoint, through `load`."""

    def __init__(
        self,
        config: PretrainedConfig,
        dtype: str,
        pad_token_id: int,
        processor: Processor | None = None,
        path: str = "",
    ) -> None:
        """Create the model. `path` is the folder that contains the model's code, in case transformers has no class for
        the model."""
        self.device = torch.device("npu", torch.npu.current_device())
        self._config = config
        self._path = path
        self.model = build(config, getattr(torch, dtype), path).to(self.device)
        self.answered: Sequence[Prompt] = ()
        """The prompts of the last batch."""
        self.weights = Weights(self.model, text_settings(config))
        self._pad_token_id = pad_token_id
        self._prompts = Prompts(processor, pad_token_id, self.model)

    def load(self, path: str) -> None:
        """Load a checkpoint's weights, like an engine whose `load_format` is not `dummy`."""
        found = load(self._config, self.model.dtype, path)
        self.weights.take(found.state_dict().items())
        self.weights.complete()

    def generate(
        self,
        prompts: Sequence[Prompt],
        length: int,
        eos: int | list[int] | None,
        sampling: Sampling,
        with_log_probs: bool,
        cut: threading.Event | None = None,
    ) -> Answers:
        """Generate a response of at most `length` tokens to each prompt. Generation stops early if `cut` is set in the
        meantime.

        Raises RolloutError if no weights have been received since the weights were last released.
        """
        if not self.weights.ready:
            raise RolloutError(
                subject="the virtual rollout engine",
                expected="weights to arrive before the engine generates",
                found="no weights have arrived since the engine started or last released its weights",
                fix="call update_weights before generating",
            )
        self.answered = prompts
        config = GenerationConfig(
            max_new_tokens=length,
            eos_token_id=eos,
            pad_token_id=self._pad_token_id,
            return_dict_in_generate=True,
            output_logits=with_log_probs,
            suppress_tokens=self._prompts.placeholders or None,
            **cast("dict[str, Any]", sampling),
        )
        batch = self._prompts.batch(prompts)
        seen = {name: value.to(self.device) for name, value in batch.seen.items()}
        ids, mask = batch.ids.to(self.device), batch.mask.to(self.device)

        def is_cut(ids: torch.Tensor, scores: object, **others: object) -> torch.Tensor:
            return torch.full((len(ids),), cut is not None and cut.is_set(), device=ids.device)

        with torch.no_grad():
            result = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=config,
                stopping_criteria=StoppingCriteriaList([is_cut]),
                **seen,
            )
        responses = result.sequences[:, ids.shape[1] :]
        log_probs = None
        if with_log_probs:
            logits = torch.stack(result.logits, dim=1).float() / sampling.get("temperature", 1.0)
            log_probs = logits.log_softmax(dim=-1).gather(-1, responses[..., None]).squeeze(-1)
        return Answers(responses, log_probs)


def engine_of(config: RolloutSettings, model_config: ModelSettings, place: Place) -> Engine:
    """Return the engine for a rollout. Unless `load_format` is `dummy`, the engine loads its weights from a
    checkpoint."""
    if place.replica == 0:
        several = f", one for the {place.size} ranks of each replica" if place.size > 1 else ""
        report(ANNOUNCEMENT + several)
    engine = Engine(
        model_config.hf_config,
        config.dtype,
        cast("int", model_config.tokenizer.pad_token_id),
        getattr(model_config, "processor", None),
        model_config.local_path,
    )
    if not config.load_format.startswith("dummy"):
        engine.load(model_config.local_path)
    return engine


def checker_of(config: RolloutSettings, model_config: ModelSettings) -> Weights:
    """Return a weight checker for a rank that receives the weights but does not hold the model, because another rank
    of the replica holds the model."""
    with torch.device("meta"):
        model = build(model_config.hf_config, getattr(torch, config.dtype), model_config.local_path)
    weights = Weights(model, text_settings(model_config.hf_config))
    if not config.load_format.startswith("dummy"):
        weights.take(model.state_dict().items())
        weights.complete()
    return weights


def adapter_of(settings: object) -> Adapter:
    """Return an adapter's configuration. verl passes it as peft's dataclass or as a dict."""
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        # Not asdict: it copies values, and some cannot be copied.
        settings = {name.name: getattr(settings, name.name) for name in dataclasses.fields(settings)}
    return cast("Adapter", dict(cast("Mapping[str, object]", settings)))


def sampling(
    do_sample: bool, temperature: float, top_p: float, top_k: int, min_p: float = 0.0, repetition_penalty: float = 1.0
) -> Sampling:
    """Convert vLLM's sampling parameters to transformers' parameters."""
    found: Sampling = {"do_sample": False}
    if do_sample and temperature != 0:
        # vLLM's -1 and transformers' 0 mean no limit.
        found = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": max(0, top_k)}
        if min_p:
            found["min_p"] = min_p
    if repetition_penalty != 1.0:
        found["repetition_penalty"] = repetition_penalty
    return found
