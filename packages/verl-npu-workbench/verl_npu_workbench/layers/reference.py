"""Computes the parts of a model on the host with transformers' own code and the trainer's weights."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..simulation.rollout.model import own_modules
from .recording import ATTENTION, HEAD, KEY, LOGPROBS, QUERY, VALUE, Batch, chosen, prefix_of


class Kind(str, Enum):
    """The operators that are compared."""

    EMBEDDING = "embedding"
    ADD = "residual"
    NORM = "norm"
    LINEAR = "projection"
    ROTARY = "rotary embedding"
    ATTENTION = "attention"
    GATE = "output gate"
    DELTA = "gated delta rule"
    BLOCK = "attention block"
    ACTIVATION = "activation"
    ROUTER = "router"
    MLP = "mlp"
    EXPERTS = "experts"
    MODEL = "all layers"
    HEAD = "head"
    LOGPROBS = "log-probabilities"
    FUSED = "head and log-probabilities"


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a model, with the names of its recorded inputs and outputs."""

    name: str
    """The name of its module below the decoder. A step inside a module has the module's name and its own."""
    kind: Kind
    given: tuple[str, ...]
    made: tuple[str, ...]

    @property
    def module(self) -> str:
        """The name of the operator's module."""
        return self.name.rpartition(".")[0] if self.kind in _STEPS else self.name


def operators(decoder: Any) -> Iterator[Operator]:
    """Yield the operators of a decoder in execution order."""
    yield Operator("embed_tokens", Kind.EMBEDDING, (), ("embed_tokens:out",))
    stream: tuple[str, ...] = ("embed_tokens:out",)
    for number, layer in enumerate(decoder.layers):
        name = f"layers.{number}"
        attention, mlp = f"{name}.{mixer_of(layer)}", f"{name}.mlp"
        yield Operator(name, Kind.ADD, stream, (f"{name}.input_layernorm:in",))
        yield _of_module(f"{name}.input_layernorm", Kind.NORM)
        yield from _of_linear_attention(attention) if hasattr(layer, _LINEAR) else _of_attention(attention, layer)
        yield _of_module(attention, Kind.BLOCK)
        stream = (f"{name}.input_layernorm:in", f"{attention}:out")
        yield Operator(f"{attention}.residual", Kind.ADD, stream, (f"{name}.post_attention_layernorm:in",))
        yield _of_module(f"{name}.post_attention_layernorm", Kind.NORM)
        if hasattr(layer.mlp, "experts"):
            yield _of_module(f"{mlp}.gate", Kind.ROUTER)
            yield _of_module(mlp, Kind.EXPERTS)
        else:
            yield _of_module(f"{mlp}.gate_proj", Kind.LINEAR)
            yield _of_module(f"{mlp}.up_proj", Kind.LINEAR)
            both = (f"{mlp}.gate_proj:out", f"{mlp}.up_proj:out")
            yield Operator(f"{mlp}.act_fn", Kind.ACTIVATION, both, (f"{mlp}.down_proj:in",))
            yield _of_module(f"{mlp}.down_proj", Kind.LINEAR)
            yield _of_module(mlp, Kind.MLP)
        stream = (f"{name}.post_attention_layernorm:in", f"{mlp}:out")
    yield Operator(f"layers.{len(decoder.layers) - 1}.residual", Kind.ADD, stream, ("norm:in",))
    yield _of_module("norm", Kind.NORM)
    yield Operator("layers", Kind.MODEL, (), ("norm:out",))
    yield _of_module(HEAD, Kind.HEAD)
    yield Operator(LOGPROBS, Kind.LOGPROBS, (f"{HEAD}:out",), (LOGPROBS,))
    yield Operator(LOGPROBS, Kind.FUSED, ("norm:out",), (LOGPROBS,))


def _of_attention(name: str, layer: Any) -> Iterator[Operator]:
    module = layer.self_attn
    for part, each in module.named_children():
        if part != "o_proj" and getattr(each, "weight", None) is not None:
            yield _of_module(f"{name}.{part}", Kind.NORM if part.endswith("norm") else Kind.LINEAR)
    three, made = tuple(f"{name}.{kind}" for kind in (QUERY, KEY, VALUE)), (f"{name}.{ATTENTION}",)
    yield Operator(f"{name}.rotary", Kind.ROTARY, (f"{name}:in",), three)
    yield Operator(f"{name}.attention", Kind.ATTENTION, three, made)
    project = getattr(module, "q_proj", None)
    # The projection of queries also makes a gate for each head.
    if project is not None and project.out_features == 2 * module.o_proj.in_features:
        yield Operator(f"{name}.gate", Kind.GATE, (f"{name}.q_proj:out", *made), (f"{name}.o_proj:in",))
    yield _of_module(f"{name}.o_proj", Kind.LINEAR)


def _of_linear_attention(name: str) -> Iterator[Operator]:
    for part in _PROJECTIONS:
        yield _of_module(f"{name}.{part}", Kind.LINEAR)
    made = tuple(f"{name}.{part}:out" for part in _PROJECTIONS)
    yield Operator(f"{name}.delta_rule", Kind.DELTA, made, (f"{name}.out_proj:in",))
    yield _of_module(f"{name}.out_proj", Kind.LINEAR)


_LINEAR, _PROJECTIONS = "linear_attn", ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")


def mixer_of(layer: Any) -> str:
    """Return the name of the part of a layer that mixes tokens: attention, or linear attention."""
    return _LINEAR if hasattr(layer, _LINEAR) else "self_attn"


def _of_module(name: str, kind: Kind) -> Operator:
    return Operator(name, kind, (f"{name}:in",), (f"{name}:out",))


_STEPS = (Kind.ROTARY, Kind.ATTENTION, Kind.GATE, Kind.DELTA, Kind.ACTIVATION)
"""Kinds of steps inside a module, which have the module's name and their own."""


_EAGER = "eager_attention_forward"
"""The attention function in each model's file."""


@contextmanager
def changed(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Context manager that sets attributes to other values within the `with` block. Each change is the attribute's
    owner, its name, and its value."""
    with ExitStack() as stack:
        for owner, name, value in changes:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


class _Exact(TorchFunctionMode):  # type: ignore[misc]
    """Lets code that computes in float32 on purpose, like norms and softmax, compute in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(each: Any) -> Any:
            return torch.float64 if each is torch.float32 else each

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(wide, args), **{key: wide(each) for key, each in (kwargs or {}).items()})


class Reference:
    """A copy of the trainer's model on the host, in one dtype. In float64, no part of the copy computes in float32.

    To test a possible cause of an operator's error, callers temporarily change one of the following attributes.
    """

    temperature: float
    """The temperature at which the trainer computes log-probabilities."""
    kept: Callable[[torch.Tensor], torch.Tensor]
    """Marks the logits that a filter of the sampler keeps."""
    targets: torch.Tensor
    """The tokens whose log-probabilities are computed."""
    positions: Callable[[torch.Tensor], torch.Tensor]
    """Changes the positions of tokens."""
    allowed: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Tells which keys a query sees, from the numbers of sequences and the positions, each of shape [tokens]."""
    pads: tuple[Sequence[int], int]
    """The pad tokens that the attention of the first layer sees: their number in front of each sequence, and their id.
    """

    def __init__(self, model: Any, batch: Batch, dtype: torch.dtype, temperature: float = 1.0) -> None:
        self.dtype, self.temperature, self.allowed, self.pads = dtype, temperature, causal, ((), 0)
        self.kept, self.positions = (lambda logits: logits > -torch.inf), (lambda places: places)
        self.model = copy.deepcopy(model).cpu().eval().requires_grad_(False)
        # The trainer's classes may be patched, and its attention may be watched.
        own_modules(self.model)
        for parameter in self.model.parameters():
            parameter.data = parameter.data.to(dtype)
        if dtype == torch.float64:
            # In another dtype, buffers like the frequencies of the rotary embedding stay as they are.
            self.model.double()
        self.model.config._attn_implementation = "eager"
        # In transformers 5, the other implementations of experts have no float64.
        self.model.config._experts_implementation = "eager"
        self.decoder = self.model.get_submodule(prefix_of(self.model).rstrip("."))
        self._read(batch)

    def _read(self, batch: Batch) -> None:
        self.batch, self.targets = batch, batch.targets()
        self.rows = torch.tensor([row for row, _ in batch.places()])
        self.places = torch.tensor([at for _, at in batch.places()])

    def on(self, batch: Batch) -> Reference:
        """Return a reference for another batch that uses the same model."""
        other = copy.copy(self)
        other._read(batch)
        return other

    def module(self, name: str) -> Any:
        """Return the module that has this name relative to the decoder. If the name is that of the head, return the
        head."""
        return self.model.get_output_embeddings() if name == HEAD else self.decoder.get_submodule(name)

    def compute(self, operator: Operator, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Compute an operator from recorded inputs. Return its outputs, concatenated along the feature dimension, as a
        tensor of shape [rows, features]."""
        given = [values[name].to(self.dtype) for name in operator.given]
        with self._mode():
            if operator.kind in _WITHOUT:
                return _WITHOUT[operator.kind](self, operator.module, *given)
            owner = self.module(operator.module)
            if operator.kind is Kind.NORM:
                return _first(owner(given[0].unflatten(-1, (-1, owner.weight.numel())))).flatten(1)
            return _first(owner(given[0][None]))[0]

    def logprobs(self) -> torch.Tensor:
        """Compute the log-probabilities of the response tokens with the whole model. The result has the shape
        [answers, 1]."""
        with self._mode():
            return self.fused(self.layers())

    def _mode(self) -> AbstractContextManager[object]:
        return torch.no_grad() if self.dtype != torch.float64 else _Exact()

    def layers(self) -> torch.Tensor:
        """Return the hidden states after the last norm."""
        return _first(self.decoder.norm(self.stream()["norm:in"]))

    def stream(self) -> dict[str, torch.Tensor]:
        """Compute the residual stream at each layer's first norm and at the last norm, and the inputs of experts.
        Return them by their recorded names."""
        found: dict[str, torch.Tensor] = {}
        with self._mode():
            hidden = self.decoder.embed_tokens(self.batch.inputs())
            for number, layer in enumerate(self.decoder.layers):
                name = f"layers.{number}"
                found[f"{name}.input_layernorm:in"] = hidden
                hidden = hidden + self.block(f"{name}.{mixer_of(layer)}", layer.input_layernorm(hidden))
                given = layer.post_attention_layernorm(hidden)
                if hasattr(layer.mlp, "experts"):
                    found[f"{name}.mlp:in"] = given
                hidden = hidden + _first(layer.mlp(given[None]))[0]
        return {**found, "norm:in": hidden}

    def fused(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities of the response tokens from the hidden states after the last norm."""
        return self.chosen(self.module(HEAD)(hidden[self.batch.answer_rows()]))

    def chosen(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities of the response tokens."""
        return chosen(logits.masked_fill(~self.kept(logits), -torch.inf), self.targets, self.temperature)

    # All sequences are computed as one, with a mask between them.

    def heads(self, name: str, hidden: torch.Tensor, positions: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Return queries, keys, and values after the rotary embedding. Each has the shape [tokens, features]."""
        taken: list[torch.Tensor] = []

        def take(*heads: torch.Tensor) -> torch.Tensor:
            taken.extend(heads)
            return hidden.new_zeros(len(hidden), self.module(name).o_proj.in_features)

        self._attended(name, hidden, positions, take)
        return taken

    def _attended(
        self, name: str, hidden: torch.Tensor, positions: torch.Tensor | None, attend: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """Return the output of an attention whose function is another one."""

        def attention(module: Any, *heads: Any, **named: Any) -> tuple[torch.Tensor, None]:
            with changed((file, _EAGER, before)):
                return attend(*(each[0].transpose(0, 1).flatten(1) for each in heads[:3]))[None], None

        module, places = self.module(name), self.positions(self.places) if positions is None else positions
        # Text has the same position in all dimensions of a picture.
        config = self.decoder.config
        settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
        places = places.expand(3, 1, -1) if "mrope_section" in settings else places[None]
        embeddings = self.decoder.rotary_emb(hidden[None], places)
        file = sys.modules[type(module).__module__]
        before = getattr(file, _EAGER)
        with changed((file, _EAGER, attention)):
            made = module(hidden_states=hidden[None], position_embeddings=embeddings, attention_mask=None)
        return _first(made)[0]

    def attend(self, name: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return the attention output of a layer before the output projection."""
        module, (counts, token) = self.module(name), self.pads
        seen = self.allowed(self.rows, self.places)
        if counts:
            pad = self.decoder.layers[0].input_layernorm(self.decoder.embed_tokens(torch.tensor([token])))
            _, keys, values = self.heads("layers.0.self_attn", pad, torch.zeros(1, dtype=torch.long))
            most = max(counts)
            key, value = torch.cat([keys.expand(most, -1), key]), torch.cat([values.expand(most, -1), value])
            seen = torch.cat([torch.arange(most) < torch.tensor([*counts])[self.rows][:, None], seen], dim=-1)
        mask = torch.zeros(seen.shape, dtype=self.dtype).masked_fill(~seen, torch.finfo(self.dtype).min)[None, None]
        size = query.shape[-1] // self.decoder.config.num_attention_heads
        sizes = size, size, getattr(module, "v_head_dim", size)
        split = (each.unflatten(-1, (-1, own)) for each, own in zip((query, key, value), sizes, strict=True))
        function = getattr(sys.modules[type(module).__module__], _EAGER)
        heads = (each.transpose(0, 1)[None] for each in split)
        return _first(function(module, *heads, mask, scaling=module.scaling, dropout=0.0))[0].flatten(1)

    def experts(self, name: str, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output of each expert for each token, [tokens, experts, features], and that of shared experts."""
        owner = self.module(name)
        with self._mode():
            if isinstance(owner.experts, torch.nn.ModuleList):
                made = [each(hidden) for each in owner.experts]
            else:
                ones, own = hidden.new_ones(len(hidden), 1), hidden.new_zeros(len(hidden), 1, dtype=torch.long)
                made = [owner.experts(hidden, own + number, ones) for number in range(len(owner.gate.weight))]
            shared = getattr(owner, "shared_experts", torch.zeros_like)
            return torch.stack(made, dim=1), shared(hidden)

    def block(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        """Return the output of a layer's whole attention block, including its projections."""
        if name.endswith(_LINEAR):
            return self._each_sequence(self.module(name), hidden)
        return self._attended(name, hidden, None, lambda *heads: self.attend(name, *heads))

    def _each_sequence(self, module: Any, *given: torch.Tensor) -> torch.Tensor:
        """Return the output of a module that computes one sequence at a time."""
        parts = ([each[self.rows == row][None] for each in given] for row in self.rows.unique())
        return torch.cat([module(*part)[0] for part in parts])

    def delta_rule(self, name: str, *projected: torch.Tensor) -> torch.Tensor:
        """Return the output of a linear-attention layer before the output projection, computed from the outputs of the
        input projections."""
        module, taken = self.module(name), list[torch.Tensor]()

        def compute(*given: torch.Tensor) -> torch.Tensor:
            with ExitStack() as stack:
                for part, value in zip(_PROJECTIONS, given, strict=True):
                    handle = getattr(module, part).register_forward_hook(lambda *_, made=value: made)
                    stack.callback(handle.remove)
                last = module.out_proj.register_forward_pre_hook(lambda _, args: taken.append(args[0]))
                stack.callback(last.remove)
                module(torch.zeros(1, given[0].shape[1], module.hidden_size, dtype=self.dtype))
            return taken[-1]

        return self._each_sequence(compute, *projected)


def _gated(reference: Reference, name: str, projected: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
    size = reference.module(name).head_dim
    return attended * projected.unflatten(-1, (-1, 2 * size))[..., size:].flatten(1).sigmoid()


def causal(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return a mask that lets each token attend to itself and to the earlier tokens of its sequence."""
    return (rows[:, None] == rows) & (places[:, None] >= places)


def _first(made: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the result of a module, or the first of its results."""
    return made[0] if isinstance(made, tuple) else made


_WITHOUT: Mapping[Kind, Callable[..., torch.Tensor]] = {
    Kind.EMBEDDING: lambda own, name: own.module(name)(own.batch.inputs()),
    Kind.ADD: lambda own, name, *given: sum(given[1:], given[0]),
    Kind.ROTARY: lambda own, name, given: torch.cat(own.heads(name, given), dim=-1),
    Kind.ATTENTION: lambda own, name, *given: own.attend(name, *given),
    Kind.GATE: _gated,
    Kind.DELTA: lambda own, name, *given: own.delta_rule(name, *given),
    Kind.BLOCK: lambda own, name, given: own.block(name, given),
    Kind.ACTIVATION: lambda own, name, gate, up: own.module(name).act_fn(gate) * up,
    Kind.ROUTER: lambda own, name, given: torch.nn.functional.linear(given, own.module(name).weight),
    Kind.MODEL: lambda own, name: own.layers(),
    Kind.LOGPROBS: lambda own, name, given: own.chosen(given),
    Kind.FUSED: lambda own, name, hidden: own.fused(hidden),
}
"""Operators that are not one module."""
