"""Looks for the cause of a difference: a change with which the reference computes the same as the side does.

A cause explains a difference only if the operator's error is then as expected. Values that a cause needs, like a base,
are measured from the recording.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

import torch

from verl_npu.features.weight_sync.engines.proof import Expected, explain, head_of
from verl_npu.features.weight_sync.transport.tensors import digest_of

from .judging import MARGIN, Judgement, Pair, Verdict, judge_one
from .recording import HEAD, QUERY, Recording, prefix_of
from .reference import Kind, Operator, Reference, causal


class Reason(str, Enum):
    """The differences that are tried."""

    BASE = "rotary base"
    SCALING = "rotary scaling"
    LAYOUT = "rotary layout"
    POSITION = "positions"
    EPSILON = "epsilon of a norm"
    SCALE = "softmax scale"
    MASK = "attention mask"
    PADDING = "padding"
    WEIGHT = "another weight"
    TRANSPOSED = "transposed weight"
    BIAS = "dropped bias"
    TIE = "tie of head and embedding"
    DTYPE = "dtype"
    ROUTING = "routing of experts"
    TEMPERATURE = "temperature"
    FILTER = "top-k or top-p"
    CHUNKS = "chunked prefill"
    PREFIX = "prefix cache"
    GRAPHS = "graphs"


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings with which the engine samples."""

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    prompt_length: int = 0
    """The length to which the trainer pads prompts; 0 if it is not known."""


class Changes:
    """Changes of attributes that can be undone."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def undo(self) -> None:
        for owner, name, value in reversed(self._before):
            setattr(owner, name, value)


Edit: TypeAlias = Callable[[Reference, Changes], None]


@dataclass(frozen=True, slots=True)
class Cause:
    """A difference that explains an error."""

    reason: Reason
    said: str
    """What the side computes with, and what the trainer's configuration says."""
    edit: Edit | None = None
    """Makes a reference compute in the same way; None if a second run of the engine showed the cause."""
    whole: Edit | None = None
    """The same for every layer, if `edit` changes only one. None otherwise."""


@contextmanager
def exchanged(cause: Cause, *references: Reference) -> Iterator[None]:
    """Let references compute with a cause."""
    changes = Changes()
    try:
        for reference in references:
            if cause.edit is not None:
                cause.edit(reference, changes)
        yield
    finally:
        changes.undo()


def cause_of(
    judgement: Judgement,
    recording: Recording,
    pair: Pair,
    sampling: Sampling | None = None,
    reruns: Mapping[Reason, Recording] | None = None,
) -> Cause | None:
    """Return the cause of a bad operator; None if nothing that is tried explains the error.

    `reruns` are recordings of the engine with one of its settings exchanged.
    """
    for reason, again in (reruns or {}).items():
        if not judge_one(judgement.operator, again, pair).is_bad:
            return Cause(reason, f"without {reason.value}, this operator is as expected")
    search = _Search(judgement, recording, pair, sampling or Sampling())
    for cause in search.candidates():
        with exchanged(cause, *pair.both):
            if not judge_one(judgement.operator, recording, pair).is_bad:
                return cause
    return search.narrower()


@dataclass(frozen=True)
class _Search:
    judgement: Judgement
    recording: Recording
    pair: Pair
    sampling: Sampling

    @property
    def operator(self) -> Operator:
        return self.judgement.operator

    @property
    def module(self) -> Any:
        return self.pair.exact.module(self.operator.module)

    def candidates(self) -> Iterator[Cause]:
        kind, name = self.operator.kind, self.operator.module
        if kind is Kind.NORM:
            yield from self.epsilons()
        if kind in (Kind.ROTARY, Kind.BLOCK):
            yield from self.rotary()
        if kind in (Kind.ATTENTION, Kind.BLOCK):
            yield from self.attention()
        if kind in (Kind.LINEAR, Kind.HEAD, Kind.ROUTER, Kind.BLOCK):
            yield from self.linear()
        if kind is Kind.EXPERTS:
            yield from self.routing()
        if kind is Kind.LOGPROBS:
            yield from self.sampled()
        else:
            yield from self.weights(name)

    def narrower(self) -> Cause | None:
        """Return the dtype that explains the error, if the operator's outputs also are numbers of that dtype."""
        if self.judgement.verdict is not Verdict.LARGER:
            return None
        made = self.recording.together(self.operator.made)
        if self.operator.kind is Kind.BLOCK:
            # The projection behind an attention may be right.
            made = self.recording.values.get(f"{self.operator.name}.o_proj:in", made)
        made = made[self._bad_rows()]
        for dtype in (torch.bfloat16, torch.float16):
            alike = float((made.to(dtype).to(made.dtype) == made).double().mean())
            if made.dtype != dtype and alike > 0.99:
                said = f"{str(dtype).removeprefix('torch.')} instead of {str(made.dtype).removeprefix('torch.')}"
                share = self.judgement.tokens
                return Cause(Reason.DTYPE, said if share > 0.99 else f"{said}, for {share:.0%} of the tokens")
        return None

    # Norms.

    def epsilons(self) -> Iterator[Cause]:
        own = _epsilon(self.module)
        if own is None:
            return
        weight = self.module.weight.double()
        both = (self.recording.values[f"{self.operator.name}:{each}"] for each in ("in", "out"))
        # A norm of heads has several rows for each token.
        given, made = (each.double().reshape(-1, weight.numel()) for each in both)
        variance = given.square().mean(-1)
        sums = (given * weight).square().mean(-1) / made.square().mean(-1)
        # The smaller the variance, the better epsilon shows.
        low = variance <= variance.quantile(0.25)
        found = float((sums - variance)[low].median())
        exponent = round(math.log10(found)) if found > 0 else -12
        for value in dict.fromkeys((10.0**exponent, found, 0.0)):
            if value >= 0 and value != own[1]:
                yield Cause(Reason.EPSILON, f"{value:.3g} instead of {own[1]:.3g}", self._epsilon(own[0], value))

    def _epsilon(self, leaf: str, value: float) -> Edit:
        last = self.operator.name.rpartition(".")[2]

        def edit(reference: Reference, changes: Changes) -> None:
            for path, module in reference.decoder.named_modules():
                if path.rpartition(".")[2] == last:
                    changes.set(module, leaf, value)

        return edit

    # Rotary embeddings.

    def rotary(self) -> Iterator[Cause]:
        rotary = self.pair.exact.decoder.rotary_emb
        own = rotary.inv_freq.double()
        base = _base(self.pair.exact.decoder.config)
        count = len(own)
        places = torch.arange(count, dtype=torch.float64) / count
        if self.operator.kind is Kind.ROTARY:
            turned, magnitude = _turned(self)
            positions = self._measured_positions(turned, own)
            if not torch.equal(positions, self.pair.exact.places):
                yield self._position(positions)
            frequencies = _frequencies(turned, self.pair.exact.places, own)
            # An error of the angle weighs less for a high frequency.
            known = frequencies.clamp(min=1e-12)
            weights = known.square() * places
            slope = -float((known.log() * weights).sum() / (places * weights).sum())
            bases = [float(f"{math.exp(min(slope, 60.0)):.{digits}g}") for digits in (1, 2, 3)]
            for each in dict.fromkeys(bases):
                if each != base:
                    yield Cause(Reason.BASE, f"{each:g} instead of {base:g}", _frequency(each**-places))
            factor = float((frequencies[: max(1, count // 2)] / own[: max(1, count // 2)]).median())
            for each in dict.fromkeys((float(f"{1 / factor:.2g}"), 1 / factor)):
                yield Cause(Reason.SCALING, f"frequencies divided by {each:.4g}", _frequency(own / each))
        else:
            bases = [1e4, 5e5, 1e6, 5e6, 1e7]
            frequencies, magnitude = own, float(rotary.attention_scaling)
            for each in bases:
                if each != base:
                    yield Cause(Reason.BASE, f"{each:g} instead of {base:g}", _frequency(each**-places))
        plain = base**-places
        if not torch.allclose(plain, own) or rotary.attention_scaling != 1:
            yield Cause(Reason.SCALING, "none", _frequency(plain, 1.0))
            yield Cause(Reason.SCALING, "without its factor of cos and sin", _frequency(own, 1.0))
        if magnitude != rotary.attention_scaling:
            said = f"a factor of cos and sin of {magnitude:.4g} instead of {rotary.attention_scaling:.4g}"
            yield Cause(Reason.SCALING, said, _frequency(own, magnitude))
            yield Cause(Reason.SCALING, "other frequencies", _frequency(frequencies, magnitude))
        yield Cause(Reason.LAYOUT, "pairs of neighbours instead of halves, or the reverse", _other_layout)

    def _measured_positions(self, turned: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
        """Return the position at which each token was rotated, from the angles of its heads."""
        count = 2 * int(self.pair.exact.places.max()) + 64
        tried = torch.arange(-64, count, dtype=torch.float64)
        wave = torch.polar(torch.ones(()).double(), -tried[:, None] * frequencies)
        fit = (turned.sum(1) @ wave.T).real
        return tried[fit.argmax(dim=1)].long()

    def _position(self, positions: torch.Tensor) -> Cause:
        offsets = positions - self.pair.exact.places
        rows = self.pair.exact.rows
        constant = all(len(offsets[rows == row].unique()) == 1 for row in rows.unique())
        changed = (offsets != 0).nonzero().flatten()
        begins = int(self.pair.exact.places[changed[0]])
        reason, said = Reason.POSITION, f"shifted by {', '.join(str(each) for each in offsets.unique().tolist()[:4])}"
        if not constant and begins > 0 and int(positions[changed[0]]) == 0:
            reason, said = Reason.CHUNKS, f"positions start again at token {begins}"
        return Cause(reason, said, _set("positions", lambda _: positions))

    # Attention.

    def attention(self) -> Iterator[Cause]:
        exact, module = self.pair.exact, self.module
        bad = exact.places[self._bad_rows()]
        boundary = int(bad.min()) if len(bad) else 0
        yield Cause(Reason.MASK, "not causal", _set("allowed", lambda rows, places: rows[:, None] == rows))
        order = torch.arange(len(exact.rows))
        across: Any = lambda rows, places: order[:, None] >= order  # noqa: E731
        yield Cause(Reason.MASK, "sequences of a batch see each other", _set("allowed", across))
        if boundary:
            for reason, said, allowed in _at(boundary):
                yield Cause(reason, said, _set("allowed", allowed))
        yield from self.padding()
        own = module.scaling
        known = {own, *(size**-power for size in self._sizes() for power in (0.5, 1.0)), 1.0}
        measured = _minimum(lambda scale: self._error(_scale(scale)), own)
        for value in (*sorted(known, key=lambda each: abs(math.log(each / measured)))[:2], measured):
            if value != own:
                yield Cause(Reason.SCALE, f"{value:.4g} instead of {own:.4g}", _scale(value))

    def _sizes(self) -> set[int]:
        config = self.pair.exact.decoder.config
        names = (
            "hidden_size",
            "head_dim",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            "num_attention_heads",
        )
        found = {getattr(config, name, None) for name in names}
        return {int(each) for each in found if each}

    def _bad_rows(self) -> torch.Tensor:
        exact, rounded = (each.compute(self.operator, self.recording.values).double() for each in self.pair.both)
        made = self.recording.together(self.operator.made).double()
        band = (rounded - exact).norm(dim=1)
        return (made - exact).norm(dim=1) > MARGIN * torch.maximum(band, band.median())

    def padding(self) -> Iterator[Cause]:
        if not self.operator.name.startswith("layers.0."):
            return
        config = self.pair.exact.decoder.config
        prompts = self.recording.batch.prompts
        token = getattr(config, "pad_token_id", None) or 0
        for length in dict.fromkeys((max(prompts), self.sampling.prompt_length)):
            counts = tuple(max(0, length - each) for each in prompts)
            for position in (0, 1) if any(counts) else ():
                said = f"attention sees the pad tokens before each prompt, up to {length} tokens"
                yield Cause(Reason.PADDING, said, _set("pads", (counts, token, position)))

    def _error(self, edit: Edit) -> float:
        exact = self.pair.exact
        with exchanged(Cause(Reason.SCALE, "", edit), exact):
            found = exact.compute(self.operator, self.recording.values).double()
        made = self.recording.together(self.operator.made).double()
        return float((made - found).norm().nan_to_num(nan=torch.inf))

    # Weights.

    def linear(self) -> Iterator[Cause]:
        name = self.operator.module
        for path, module in self.module.named_modules():
            weight, whole = getattr(module, "weight", None), f"{name}.{path}".rstrip(".")
            if weight is None or weight.dim() != 2:
                continue
            if getattr(module, "bias", None) is not None:
                yield Cause(Reason.BIAS, f"{whole} without its bias", _parameter(whole, "bias", torch.zeros_like))
            turned: Callable[[torch.Tensor], torch.Tensor] = lambda weight: weight.T.reshape(weight.shape)  # noqa: E731
            yield Cause(Reason.TRANSPOSED, f"the weight of {whole} is transposed", _parameter(whole, "weight", turned))
            if name == HEAD and not self.pair.exact.decoder.config.tie_word_embeddings:
                said = "the head is the embedding, and the trainer's is not"
                yield Cause(
                    Reason.TIE, said, _parameters({f"{HEAD}.weight": self.pair.exact.decoder.embed_tokens.weight})
                )

    def weights(self, name: str) -> Iterator[Cause]:
        """Exchange the weights of a module that the side holds differently from the trainer."""
        if self.operator.kind is Kind.MODEL:
            name = ""
        differing = self.differing
        own = [path for path in differing if path.startswith(f"{name}." if name else "")]
        if own:
            said = [f"{path}: {self._explained(path)}" for path in own]
            reason = Reason.TRANSPOSED if "transposed" in said[0] else Reason.WEIGHT
            if self.operator.kind is Kind.HEAD and self.pair.exact.decoder.config.tie_word_embeddings:
                reason, said = Reason.TIE, ["the head is not the embedding, and the trainer's is"]
            if len(differing) > len(own):
                said.append(f"{len(differing) - len(own)} other weights differ")
            edit = _parameters({path: differing[path] for path in own})
            yield Cause(reason, "; ".join(said[:2] + said[2:][-1:]), edit, _parameters(differing))

    @cached_property
    def differing(self) -> dict[str, torch.Tensor]:
        """The weights that the side holds and that are not the trainer's."""
        found = {}
        for path, mine in self._weights.items():
            held = self.recording.held(path)
            if held is not None and held.shape == mine.shape and not torch.equal(held.cpu().to(mine.dtype), mine):
                found[path] = held.detach().cpu()
        return found

    @cached_property
    def _weights(self) -> dict[str, torch.Tensor]:
        """The trainer's weights, in the side's dtype, by their names below the decoder."""
        model = self.pair.exact.model
        named = model.named_parameters(remove_duplicate=False)
        return {path.removeprefix(prefix_of(model)): each.to(self.recording.dtype) for path, each in named}

    def _explained(self, path: str) -> str:
        mine, held = self._weights[path], self.differing[path]
        heads: dict[int, list[str]] = {}
        for other, each in self._weights.items():
            heads.setdefault(digest_of(head_of(each)), []).append(other)
        expected = Expected(path, tuple(mine.shape), digest_of(mine), digest_of(head_of(mine)), None, {})
        return explain(expected, held.to(mine.dtype), stale=False, sent=heads)

    # Experts.

    def routing(self) -> Iterator[Cause]:
        owners = [self.module, self.module.gate]
        for leaf, values in (
            ("norm_topk_prob", (True, False)),
            ("top_k", tuple(range(1, self.pair.exact.decoder.config.num_experts_per_tok + 3))),
            ("routed_scaling_factor", (1.0,)),
        ):
            own = next((getattr(each, leaf) for each in owners if hasattr(each, leaf)), None)
            for value in values if own is not None else ():
                if value != own:
                    said = f"{leaf} is {value} instead of {own}"
                    yield Cause(Reason.ROUTING, said, _routing(leaf, value))
        gate = self.module.gate
        if getattr(gate, "e_score_correction_bias", None) is not None:
            said = "without e_score_correction_bias"
            edit = _parameter(f"{self.operator.module}.gate", "e_score_correction_bias", torch.zeros_like)
            yield Cause(Reason.BIAS, said, edit)

    # Log-probabilities.

    def sampled(self) -> Iterator[Cause]:
        own = self.pair.exact.conditions.temperature
        measured = _minimum(lambda value: self._error(_set("temperature", value)), own)
        for value in dict.fromkeys((float(f"{measured:.2g}"), float(f"{measured:.3g}"), measured)):
            if value != own:
                yield Cause(Reason.TEMPERATURE, f"{value:.4g} instead of {own:.4g}", _set("temperature", value))
        sampling = self.sampling
        if sampling.top_k > 0 or sampling.top_p < 1:
            said = f"log-probabilities among the tokens that top_k={sampling.top_k} and top_p={sampling.top_p} keep"
            yield Cause(Reason.FILTER, said, _set("kept", _filter(sampling)))


def _epsilon(module: Any) -> tuple[str, float] | None:
    return next(((leaf, getattr(module, leaf)) for leaf in ("variance_epsilon", "eps") if hasattr(module, leaf)), None)


def _base(config: Any) -> float:
    """Return the rotary base. transformers 5 keeps it among the other settings of the rotary embedding."""
    settings = getattr(config, "rope_parameters", None) or {}
    return float(settings.get("rope_theta") or getattr(config, "rope_theta", 10000.0) or 10000.0)


def _turned(search: _Search) -> tuple[torch.Tensor, float]:
    """Return by how much each pair of each head was turned, [tokens, heads, pairs], and by how much heads grew."""
    exact, operator = search.pair.exact, search.operator
    (given,) = (search.recording.values[name].double() for name in operator.given)
    still = Operator(operator.name, Kind.ROTARY, operator.given, ())
    with exchanged(Cause(Reason.POSITION, "", _set("positions", torch.zeros_like)), exact):
        before = exact.compute(still, {operator.given[0]: given}).double()
    made = search.recording.values[f"{operator.module}.{QUERY}"].double()
    size = made.shape[1] // exact.decoder.config.num_attention_heads
    pairs = len(exact.decoder.rotary_emb.inv_freq)
    parts = []
    for each in (before[:, : made.shape[1]] / exact.decoder.rotary_emb.attention_scaling, made):
        heads = each.unflatten(-1, (-1, size))[..., -2 * pairs :]
        parts.append(torch.complex(heads[..., :pairs], heads[..., pairs:]))
    growth = float((parts[1].abs() * parts[0].abs()).sum() / parts[0].abs().square().sum())
    return parts[1] * parts[0].conj(), growth


def _frequencies(turned: torch.Tensor, places: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Return the frequency of each pair, from the angles at each position.

    Angles are known only up to whole turns. So the frequency is measured at position 1, and then more precisely at
    later positions.
    """
    summed = torch.stack([turned[places == place].sum((0, 1)) for place in range(int(places.max()) + 1)])
    found = summed[1].angle() if len(summed) > 1 else own
    place = 2
    while place < len(summed):
        guess = found * place
        turns = ((guess - summed[place].angle()) / math.tau).round()
        found = (summed[place].angle() + turns * math.tau) / place
        place = max(place + 1, place * 3 // 2)
    return found


def _frequency(values: torch.Tensor, factor: float | None = None) -> Edit:
    def edit(reference: Reference, changes: Changes) -> None:
        rotary = reference.decoder.rotary_emb
        # Engines and trainers compute frequencies in float32.
        changes.set(rotary, "inv_freq", values.float().to(rotary.inv_freq.dtype))
        if factor is not None:
            changes.set(rotary, "attention_scaling", factor)

    return edit


def _other_layout(reference: Reference, changes: Changes) -> None:
    attention = reference.decoder.layers[0].self_attn
    config = reference.decoder.config
    if getattr(config, "rope_interleave", None) is not None:
        changes.set(config, "rope_interleave", not config.rope_interleave)
        return
    changes.set(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", _rotate_neighbours)


def _rotate_neighbours(query: Any, key: Any, cos: Any, sin: Any, *args: Any, **named: Any) -> tuple[Any, Any]:
    half = cos.shape[-1] // 2
    cos, sin = (each[..., :half].repeat_interleave(2, dim=-1)[:, None] for each in (cos, sin))

    def rotate(heads: Any) -> Any:
        even, odd = heads[..., ::2], heads[..., 1::2]
        return heads * cos + torch.stack((-odd, even), dim=-1).flatten(-2) * sin

    return rotate(query), rotate(key)


def _at(boundary: int) -> Iterator[tuple[Reason, str, Any]]:
    """Return masks that first differ from a causal one at a position."""
    yield (
        Reason.CHUNKS,
        f"tokens from {boundary} on do not see the tokens before",
        lambda rows, places: causal(rows, places) & ~((places[:, None] >= boundary) & (places < boundary)),
    )
    yield (
        Reason.CHUNKS,
        f"chunks of {boundary} tokens do not see each other",
        lambda rows, places: causal(rows, places) & (places[:, None] // boundary == places // boundary),
    )
    yield (
        Reason.MASK,
        f"a window of {boundary} tokens",
        lambda rows, places: causal(rows, places) & (places[:, None] - places < boundary),
    )


def _scale(value: float) -> Edit:
    def edit(reference: Reference, changes: Changes) -> None:
        for layer in reference.decoder.layers:
            changes.set(layer.self_attn, "scaling", value)

    return edit


def _set(name: str, value: Any) -> Edit:
    return lambda reference, changes: changes.set(reference.conditions, name, value)


def _parameter(module: str, leaf: str, changed: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    def edit(reference: Reference, changes: Changes) -> None:
        owner = reference.module(module)
        held = getattr(owner, leaf)
        made = changed(held.data)
        # Another parameter may share the memory.
        changes.set(owner, leaf, torch.nn.Parameter(made, False) if isinstance(held, torch.nn.Parameter) else made)

    return edit


def _parameters(held: Mapping[str, torch.Tensor]) -> Edit:
    def edit(reference: Reference, changes: Changes) -> None:
        for path, value in held.items():
            module, _, leaf = path.rpartition(".")
            _parameter(module, leaf, lambda before, value=value: value.to(before.dtype))(reference, changes)  # type: ignore[misc]

    return edit


def _routing(leaf: str, value: object) -> Edit:
    def edit(reference: Reference, changes: Changes) -> None:
        for layer in reference.decoder.layers:
            for owner in (layer.mlp, getattr(layer.mlp, "gate", None)):
                if hasattr(owner, leaf):
                    changes.set(owner, leaf, value)

    return edit


def _filter(sampling: Sampling) -> Callable[[torch.Tensor], torch.Tensor]:
    def kept(logits: torch.Tensor) -> torch.Tensor:
        order = logits.argsort(dim=-1, descending=True)
        ranks = order.argsort(dim=-1)
        keep = torch.ones_like(logits, dtype=torch.bool)
        if sampling.top_k > 0:
            keep &= ranks < sampling.top_k
        if sampling.top_p < 1:
            wide = (logits / sampling.temperature).masked_fill(~keep, -torch.inf).softmax(-1).gather(-1, order)
            before = (wide.cumsum(-1) - wide).gather(-1, ranks)
            keep &= before < sampling.top_p
        return keep

    return kept


_GOLDEN = (5**0.5 - 1) / 2


def _minimum(error: Callable[[float], float], around: float) -> float:
    """Return the value with the smallest error, among a thirtieth and thirty times of one."""
    factors = [30.0 ** (step / 16) for step in range(-16, 17)]
    best = min(range(len(factors)), key=lambda each: error(around * factors[each]))
    low, high = (math.log(around * factors[min(max(each, 0), 32)]) for each in (best - 1, best + 1))
    for _ in range(45):
        one, two = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if error(math.exp(one)) < error(math.exp(two)):
            high = two
        else:
            low = one
    return math.exp((low + high) / 2)
