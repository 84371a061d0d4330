"""Records the inputs and outputs of a model's parts, under transformers' names.

Values have a row for each token that the model read, in the order of the sequences. Heads, and all other dimensions of
a token's value, are one dimension.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from verl_npu.features.weight_sync.engines.layout import kinds_of, sections_of

Place: TypeAlias = tuple[int, int]
"""The number of a sequence, and a position in it."""
Held: TypeAlias = Callable[[str], torch.Tensor | None]

QUERY, KEY, VALUE, ATTENTION = "query", "key", "value", "attention"
"""The values of a layer's attention: queries and keys after the rotary embedding, and its output before o_proj."""
HEAD, LOGPROBS = "lm_head", "logprobs"
_RECORDED = re.compile(
    r"embed_tokens|norm|lm_head|logits_processor|"
    r"layers\.\d+\.(\w+norm|self_attn|mlp|self_attn\.(\w+norm|\w+_proj\w*|attn)|mlp\.(\w+_proj|gate)|"
    r"linear_attn(\.\w+_proj\w*)?)"
)
OF_KEYS = re.compile(r".*(\.key|\.value|k_norm:(in|out)|[kv]_proj:out)")
"""The values that have key heads."""
SHARDED = re.compile(
    rf"{OF_KEYS.pattern}|.*(\.query|\.attention|\bq_norm:(in|out)|(q|q_b|gate|up)_proj:out|(o|out|down)_proj:in)"
)
"""The values whose features are split among the ranks of a tensor-parallel group."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Token sequences: prompts with their responses."""

    tokens: tuple[tuple[int, ...], ...]
    prompts: tuple[int, ...]
    """The lengths of the prompts."""

    def places(self) -> list[Place]:
        """Return the place (sequence and position) of each token that a model must read: all tokens except the last
        token of each sequence."""
        return [(row, at) for row, tokens in enumerate(self.tokens) for at in range(len(tokens) - 1)]

    def answers(self) -> list[Place]:
        """Return the places where a model predicts a token of a response."""
        return [(row, at) for row, at in self.places() if at >= self.prompts[row] - 1]

    def answer_rows(self) -> torch.Tensor:
        """For each place in `answers`, return the index of the place in the list `places`."""
        return torch.tensor([index for index, (row, at) in enumerate(self.places()) if at >= self.prompts[row] - 1])

    def inputs(self) -> torch.Tensor:
        """Return the input token at each place that `places` returns."""
        return torch.tensor([self.tokens[row][at] for row, at in self.places()])

    def targets(self) -> torch.Tensor:
        """Return the token that follows each place that `answers` returns."""
        return torch.tensor([self.tokens[row][at + 1] for row, at in self.answers()])


@dataclass(frozen=True, slots=True)
class Recording:
    """The recorded values of one side (trainer or engine) of a comparison, by name. The input of a module is named
    `NAME:in`, and its output `NAME:out`."""

    batch: Batch
    dtype: torch.dtype
    values: Mapping[str, torch.Tensor]
    held: Held = field(default=lambda name: None)
    """Returns the side's own weight under transformers' name; None if it cannot be read."""

    def together(self, names: Sequence[str]) -> torch.Tensor:
        """Return several values, concatenated along the feature dimension, as a tensor of shape [rows, features]."""
        return torch.cat([self.values[name] for name in names], dim=-1)


def prefix_of(model: Any) -> str:
    """Return the path of the decoder in a language model. The decoder is the part that has the embedding and the
    layers."""
    for name, module in model.named_modules():
        if all(hasattr(module, part) for part in ("layers", "embed_tokens", "norm")):
            return _plain(f"{name}." if name else "")
    raise LookupError(f"the model class {type(model).__name__} has no decoder with embed_tokens, layers, and norm")


def _plain(path: str) -> str:
    """Return the path of a module without the names that FSDP adds."""
    return path.replace("_fsdp_wrapped_module.", "")


class Recorder:
    """Collects values over several forward passes. The rows of a value may come in any order."""

    def __init__(self) -> None:
        self.taken: dict[str, list[tuple[Sequence[Place | None], torch.Tensor]]] = defaultdict(list)
        self._places: Sequence[Place | None] = ()
        self._heads: Sequence[Place | None] = ()

    def begin(self, places: Sequence[Place | None], heads: Sequence[Place | None] | None = None) -> None:
        """Set the place (sequence and position) of each row in the next forward pass. None marks padding.

        `heads` are the places of the rows that reach the head, if not all rows reach it. If `places` is empty, nothing
        is recorded.
        """
        self._places, self._heads = places, places if heads is None else heads

    def add(self, name: str, value: object) -> None:
        """Record a value. The value has one row for each place (sequence and position). If the batch is padded, the
        rows of the padding come last."""
        places = self._heads if name.startswith((HEAD, LOGPROBS)) else self._places
        if not places or not isinstance(value, torch.Tensor):
            return
        lead = len(value)
        if lead < len(places) and value.dim() > 2:
            lead *= value.shape[1]
        if lead < len(places):
            # Some attention computes only a part of a batch in a module.
            return
        # Engines change tensors in place later.
        rows = value.detach().reshape(lead, -1)[: len(places)].to("cpu", copy=True)
        self.taken[name].append((places, rows))

    def recording(self, batch: Batch, dtype: torch.dtype, held: Held = lambda name: None) -> Recording:
        """Return the values that were recorded at all places of the batch. For the head's outputs and the
        log-probabilities, only the places that `batch.answers()` returns are needed."""

        def until(place: Place) -> tuple[int, ...]:
            return batch.tokens[place[0]][: place[1] + 1]

        values = {}
        for name, taken in self.taken.items():
            wanted = batch.answers() if name.startswith((HEAD, LOGPROBS)) else batch.places()
            stacked = torch.cat([rows for _, rows in taken])
            # A preempted request is computed twice.
            rows = {place: row for row, place in enumerate(place for places, _ in taken for place in places)}
            # A cached prefix is computed only for the first request that has it.
            cached = {until(place): row for place, row in rows.items() if place is not None}
            found = [rows.get(place, cached.get(until(place))) for place in wanted]
            if None not in found:
                values[name] = stacked[found]
        return Recording(batch, dtype, values, held)


@contextmanager
def recorded(model: Any, recorder: Recorder) -> Iterator[None]:
    """Record the values that the parts of a model compute. The model is a transformers model or a vLLM model."""
    prefix = prefix_of(model)
    with ExitStack() as stack:
        for path, module in model.named_modules():
            name = _plain(path).removeprefix(prefix)
            # The head of a model with images is the one of its language model.
            name = name.rpartition(".")[2] if name.endswith((".lm_head", ".logits_processor")) else name
            if _RECORDED.fullmatch(name):
                _watch(stack, recorder, name, module)
        stack.enter_context(_attention(model, prefix, recorder))
        yield


def _watch(stack: ExitStack, recorder: Recorder, name: str, module: Any) -> None:
    kinds = kinds_of(module)
    if name == "logits_processor":
        name = HEAD
    parts = _PARTS.get(name.rpartition(".")[2], ()) if "LinearBase" in kinds else ()

    def before(module: object, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = named.get("hidden_states", args[0] if args else named.get("input"))
        if "LogitsProcessor" in kinds:
            given = args[1]
        if name.endswith(".attn"):
            for kind, value in zip((QUERY, KEY, VALUE), args, strict=False):
                recorder.add(name.removesuffix("attn") + kind, value)
            return
        for each in _siblings(name, parts):
            recorder.add(f"{each}:in", given)

    def after(module: object, args: tuple[Any, ...], named: dict[str, Any], made: Any) -> None:
        first = made[0] if isinstance(made, tuple) else made
        if name.endswith(".attn"):
            recorder.add(name.removesuffix("attn") + ATTENTION, first)
        elif "RMSNorm" in kinds and isinstance(made, tuple):
            # vLLM's norm also adds the residual, and returns the sum.
            recorder.add(f"{name}:in", made[1])
            recorder.add(f"{name}:out", first)
        elif parts:
            sections = sections_of(module, "weight") or ()
            sizes = [each.share.size if each.share else each.rows for each in sections]
            for each, value in zip(_siblings(name, parts), first.split(sizes, dim=-1), strict=True):
                recorder.add(f"{each}:out", value)
        elif isinstance(first, torch.Tensor) and first.is_floating_point():
            recorder.add(f"{name}:out", first)

    for handle in (
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after, with_kwargs=True),
    ):
        stack.callback(handle.remove)


_PARTS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
}
"""The projections that vLLM fuses, by its own names."""


def _siblings(name: str, parts: Iterable[str]) -> list[str]:
    return [name.rpartition(".")[0] + "." + part for part in parts] or [name]


@contextmanager
def _attention(model: Any, prefix: str, recorder: Recorder) -> Iterator[None]:
    """Record the queries, keys, values, and outputs of transformers' attention functions."""
    names = {id(module): _plain(path).removeprefix(prefix) for path, module in model.named_modules()}

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **named: Any) -> Any:
            made = function(module, query, key, value, *args, **named)
            name = names.get(id(module))
            if name is not None:
                # For flash attention, transformers pads values to the size of keys.
                rows, size = query.shape[2], getattr(module, "v_head_dim", value.shape[-1])
                for kind, each in zip((QUERY, KEY, VALUE), (query, key, value[..., :size]), strict=True):
                    # With a cache, earlier keys come first.
                    recorder.add(f"{name}.{kind}", each[:, :, -rows:].transpose(1, 2))
                recorder.add(f"{name}.{ATTENTION}", made[0][..., :size])
            return made

        return attend

    with ExitStack() as stack:
        for functions, key in _attention_functions(model):
            before = functions[key]
            functions[key] = watched(before)
            stack.callback(functions.__setitem__, key, before)
        yield


def _attention_functions(model: Any) -> Iterator[tuple[Any, str]]:
    """Return the mappings, and the names in them, under which a model of transformers finds its attention function."""
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
    modules = {type(module).__module__ for module in model.modules()}
    for module in (sys.modules[name] for name in sorted(modules)):
        if implementation == "eager" and hasattr(module, "eager_attention_forward"):
            yield vars(module), "eager_attention_forward"
    functions = sys.modules.get("transformers.modeling_utils")
    if isinstance(implementation, str) and implementation != "eager" and functions is not None:
        yield functions.ALL_ATTENTION_FUNCTIONS, implementation


def weights_of(model: Any, weights: Mapping[str, torch.Tensor] | None = None) -> Held:
    """Return a function that finds a weight in `weights` or, if `weights` is None, in the transformers model. The
    function takes the weight's name relative to the decoder, or the name of the head's weight."""
    prefix = prefix_of(model)
    held = dict(model.named_parameters(remove_duplicate=False)) if weights is None else weights
    return lambda name: held.get(prefix + name, held.get(name))


def record(model: Any, batch: Batch, temperature: float = 1.0) -> Recording:
    """Run a batch through a transformers model, one sequence at a time, and return the recorded values."""
    recorder = Recorder()
    device = next(model.parameters()).device
    with torch.no_grad(), recorded(model, recorder):
        for number, tokens in enumerate(batch.tokens):
            recorder.begin([(number, at) for at in range(len(tokens) - 1)])
            logits = model(input_ids=torch.tensor([tokens[:-1]], device=device), use_cache=False).logits[0]
            recorder.add(LOGPROBS, chosen(logits.cpu(), torch.tensor(tokens[1:]), temperature))
    return recorder.recording(batch, model.dtype, weights_of(model))


def chosen(logits: torch.Tensor, tokens: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Return the log-probabilities of tokens as a trainer computes them: without sampling filters, and in float32 or
    higher precision."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return (wide / temperature).log_softmax(dim=-1).gather(-1, tokens[:, None])
