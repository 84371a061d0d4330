"""Looks for the cause of a difference: a change that makes the reference compute the same results as the side (trainer
or engine).

A cause explains a difference only if the operator's error is then as expected. Values that a cause needs, like a base,
are measured from the recording.
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb

from verl_npu.features.weight_sync.engines.proof import Expected, explain, head_of
from verl_npu.features.weight_sync.transport.tensors import digest_of
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from . import CHUNKS, GRAPHS, PREFIX
from .judging import Judgement, Pair, Verdict, judge_one
from .recording import ATTENTION, HEAD, QUERY, Recording, prefix_of
from .reference import Kind, Operator, Reference, changed


class Reason(Enum):
    """The possible causes of a difference. The comparison tests each cause."""

    BASE = _("rotary base")
    SCALING = _("rotary scaling")
    LAYOUT = _("rotary layout")
    POSITION = _("positions")
    EPSILON = _("epsilon of a norm")
    SCALE = _("softmax scale")
    MASK = _("attention mask")
    PADDING = _("padding")
    WEIGHT = _("another weight")
    TRANSPOSED = _("transposed weight")
    BIAS = _("dropped bias")
    TIE = _("tie of head and embedding")
    DTYPE = _("dtype")
    ROUTING = _("routing of experts")
    TEMPERATURE = _("temperature")
    FILTER = _("top-k or top-p")
    LABELS = _("probability of another token")
    CHUNKS = CHUNKS
    PREFIX = PREFIX
    GRAPHS = GRAPHS


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling settings. The trainer has the same temperature."""

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    prompt_length: int = 0
    """The length that the trainer pads prompts to; 0 if the length is not known."""


Edit: TypeAlias = Callable[[Reference], Iterable[tuple[Any, str, Any]]]
"""A function that returns the owners, names, and new values of attributes. These values change how a reference
computes."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A difference that explains an error."""

    reason: Reason
    said: str
    """The settings that the side (trainer or engine) computes with, and the settings in the trainer's
    configuration."""
    edit: Edit | None = None
    """Makes a reference compute in the same way; None if a second run of the engine showed the cause."""
    whole: Edit | None = None
    """The same for every layer, if `edit` changes only one. None otherwise."""


def exchanged(edit: Edit | None, *references: Reference) -> AbstractContextManager[None]:
    """Context manager that applies an edit to each reference. Within the `with` block, the references have the
    attribute values that the edit returns."""
    return changed(*(change for reference in references if edit for change in edit(reference)))


def cause_of(
    judgement: Judgement,
    recording: Recording,
    pair: Pair,
    sampling: Sampling,
    reruns: Mapping[Reason, Recording] | None,
) -> Cause | None:
    """Return the cause of an operator's error, or None if no tested cause explains the error.

    `reruns` are recordings of the engine with one setting changed.
    """
    for reason, again in (reruns or {}).items():
        if not judge_one(judgement.operator, again, pair.on(again.batch)).is_bad:
            said = _("without {reason}, this operator is as expected").format(reason=reason.value)
            return Cause(reason, said)
    search = _Search(judgement, recording, pair, sampling)
    for candidates in _CANDIDATES.get(judgement.operator.kind, (_weights,)):
        for cause in candidates(search):
            with exchanged(cause.edit, *pair):
                if not judge_one(judgement.operator, recording, pair).is_bad:
                    return cause
    return _narrower(search)


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

    @property
    def config(self) -> Any:
        return self.pair.exact.decoder.config

    def measured(self, edit: Callable[[float], Edit], around: float) -> float:
        """Return the value with the smallest error, between a thirtieth of `around` and 30 times `around`."""
        made, width = self.recording.together(self.operator.made).double(), 30.0

        def error(value: float) -> float:
            with exchanged(edit(value), self.pair.exact):
                found = self.pair.exact.compute(self.operator, self.recording.values).double()
            return float((made - found).norm().nan_to_num(nan=torch.inf))

        for _round in range(10):
            around = min((around * width ** (step / 8) for step in range(-8, 9)), key=error)
            width **= 1 / 8
        return around

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        """The trainer's weights in the dtype of the recording, by name relative to the decoder."""
        model = self.pair.exact.model
        prefix, named = prefix_of(model), model.named_parameters(remove_duplicate=False)
        return {
            path.removeprefix(prefix): each.to(self.recording.dtype)
            for path, each in named
            # A model with pictures has further weights, which text does not need.
            if path.startswith((prefix, f"{HEAD}."))
        }

    @cached_property
    def differing(self) -> dict[str, torch.Tensor]:
        """The weights of this side that differ from the trainer's weights."""
        both = ((path, mine, self.recording.held(path)) for path, mine in self.weights.items())
        return {
            path: held.detach().cpu()
            for path, mine, held in both
            if held is not None and held.shape == mine.shape and not torch.equal(held.cpu().to(mine.dtype), mine)
        }

    def explained(self, path: str) -> str:
        """Describe how a weight of this side differs from the trainer's weight."""
        mine, heads = self.weights[path], dict[int, list[str]]()
        for other, each in self.weights.items():
            heads.setdefault(digest_of(head_of(each)), []).append(other)
        expected = Expected(path, tuple(mine.shape), digest_of(mine), digest_of(head_of(mine)), None, {})
        held = self.differing[path].to(mine.dtype)
        said = explain(expected, held, stale=False, sent=heads, holder=_("this side"))
        return _("{path}: {difference}").format(path=path, difference=said)


def _instead(found: object, own: object, words: str = _("{found} instead of {own}"), **more: str) -> str:
    """Return a text about a value of this side and the trainer's one."""
    one, other = (f"{each:g}" if isinstance(each, float) else each for each in (found, own))
    return words.format(found=one, own=other, **more)


def _other(
    reason: Reason, own: object, values: Iterable[Any], edit: Callable[[Any], Edit], *words: str, **more: str
) -> Iterator[Cause]:
    """Try values that are not the trainer's own one."""
    return (Cause(reason, _instead(each, own, *words, **more), edit(each)) for each in values if each != own)


def _rounded(measured: float, *digits: int) -> list[float]:
    """Return a measured value, rounded to each number of digits, and then the value itself."""
    return [*(float(f"{measured:.{each}g}") for each in digits), measured]


# Norms.


def _epsilons(search: _Search) -> Iterator[Cause]:
    leaf = next((each for each in ("variance_epsilon", "eps") if hasattr(search.module, each)), None)
    if leaf is None:
        return
    name, own = search.operator.name, getattr(search.module, leaf)
    # Some norms add 1 to their weight.
    weight = search.module(torch.ones_like(search.module.weight)).double() * (1 + own) ** 0.5
    # A norm of heads has several rows for each token.
    given, made = (search.recording.values[f"{name}:{each}"].double() for each in ("in", "out"))
    given, made = given.reshape(-1, weight.numel()), made.reshape(-1, weight.numel())
    variance = given.square().mean(-1)
    sums = (given * weight).square().mean(-1) / made.square().mean(-1)
    # The smaller the variance, the better epsilon shows.
    low = variance <= variance.quantile(0.25)
    found = float((sums - variance)[low].median())
    if math.isfinite(found):
        values = (10.0 ** round(math.log10(max(found, 1e-12))), max(found, 0.0), 0.0)
        yield from _other(Reason.EPSILON, own, values, partial(_of_all, name.rpartition(".")[2], leaf))


# Rotary embeddings.


def _rotary(search: _Search) -> Iterator[Cause]:
    rotary, places = search.pair.exact.decoder.rotary_emb, search.pair.exact.places
    own, factor, base = rotary.inv_freq.double(), float(rotary.attention_scaling), _base(search.config)
    steps = torch.arange(len(own), dtype=torch.float64) / len(own)
    # Without queries and keys, nothing can be measured.
    bases, frequencies, measured = [1e4, 5e5, 1e6, 5e6, 1e7], own, factor
    if search.operator.kind is Kind.ROTARY:
        turned, measured = _turned(search)
        positions = _positions(turned, own, places)
        if not torch.equal(positions, places):
            yield _moved(positions - places, positions, search.pair.exact)
        frequencies = _frequencies(turned, places, own)
        # An error of the angle weighs less for a high frequency.
        known = frequencies.clamp(min=1e-12)
        slope = -float((known.log() * known.square() * steps).sum() / (steps.square() * known.square()).sum())
        bases = _rounded(math.exp(min(slope, 60.0)), 1, 2, 3)
    yield from _other(Reason.BASE, base, bases, lambda each: _frequency(each**-steps))
    yield from _scaled(search.config, *(float(base ** -steps[-1] / each[-1]) for each in (own, frequencies)))
    divided = float((own / frequencies)[: max(1, len(own) // 2)].median())
    slower, said = (lambda each: _frequency(own / each, factor)), _("frequencies divided by {found}")
    yield from _other(Reason.SCALING, 1.0, _rounded(divided, 2), slower, said)
    yield Cause(Reason.SCALING, _("no scaling"), _frequency(base**-steps, 1.0))
    said = _("a factor of cos and sin of {found} instead of {own}")
    yield from _other(Reason.SCALING, factor, _rounded(measured, 3), partial(_frequency, own), said)
    yield Cause(Reason.SCALING, _("other frequencies"), _frequency(frequencies, measured))
    yield Cause(Reason.LAYOUT, _("pairs of neighbors instead of halves, or the reverse"), _other_layout(search))


def _base(config: Any) -> float:
    """Return the rotary base. transformers 5 keeps it among the other settings of the rotary embedding."""
    settings = getattr(config, "rope_parameters", None) or {}
    return float(settings.get("rope_theta") or getattr(config, "rope_theta", 10000.0) or 10000.0)


def _scaled(config: Any, own: float, measured: float) -> Iterator[Cause]:
    """Try the trainer's scaling with other settings, and with the factor that the side's lowest frequency shows."""
    name = "rope_parameters" if getattr(config, "rope_parameters", None) else "rope_scaling"
    settings = getattr(config, name, None) or {}
    kind, first = settings.get("rope_type"), settings.get("original_max_position_embeddings")
    if kind not in ROPE_INIT_FUNCTIONS or not first or not math.isfinite(measured):
        return
    factor, truncated, size = float(f"{measured:.3g}"), settings.get("truncate", True), config.max_position_embeddings
    own = float(f"{own:.3g}")
    for words, found, before, change, positions in (
        # Until 4.55, transformers divides the two sizes.
        (_("a factor of {found} instead of {own}"), factor, own, {"factor": factor}, round(factor * first)),
        (_("truncate is {found} instead of {own}"), not truncated, truncated, {"truncate": not truncated}, size),
        (_("the ramp of {found} positions instead of {own}"), first, size, {}, first),
    ):
        other = copy.deepcopy(config)
        setattr(other, name, {**settings, **change})
        other.max_position_embeddings = positions
        edit = _frequency(*ROPE_INIT_FUNCTIONS[kind](other, torch.device("cpu")))
        yield Cause(Reason.SCALING, _instead(found, before, words), edit)


def _turned(search: _Search) -> tuple[torch.Tensor, float]:
    """Return by how much each pair of each head was turned, [tokens, heads, pairs], and by how much heads grew."""
    exact, operator = search.pair.exact, search.operator
    with exchanged(_set("positions", torch.zeros_like), exact):
        before = exact.compute(operator, search.recording.values).double()
    made = search.recording.values[f"{operator.module}.{QUERY}"].double()
    size, pairs = made.shape[1] // search.config.num_attention_heads, len(exact.decoder.rotary_emb.inv_freq)
    parts = []
    for each in (before[:, : made.shape[1]] / exact.decoder.rotary_emb.attention_scaling, made):
        heads = each.unflatten(-1, (-1, size))
        # Latent attention rotates the last features of a head.
        latent = hasattr(search.config, "qk_rope_head_dim")
        heads = heads[..., -2 * pairs :] if latent else heads[..., : 2 * pairs]
        parts.append(torch.complex(heads[..., :pairs], heads[..., pairs:]))
    growth = float((parts[1].abs() * parts[0].abs()).sum() / parts[0].abs().square().sum())
    return parts[1] * parts[0].conj(), growth


def _positions(turned: torch.Tensor, frequencies: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the position at which each token was rotated, from the angles of its heads."""
    tried = torch.arange(-64, 2 * int(places.max()) + 64, dtype=torch.float64)
    wave = torch.polar(torch.ones(()).double(), -tried[:, None] * frequencies)
    return tried[(turned.sum(1) @ wave.T).real.argmax(dim=1)].long()


def _moved(offsets: torch.Tensor, positions: torch.Tensor, exact: Reference) -> Cause:
    constant = all(len(offsets[exact.rows == row].unique()) == 1 for row in exact.rows.unique())
    first = int(offsets.nonzero()[0])
    several = ", ".join(str(each) for each in offsets.unique().tolist()[:4])
    reason, said = Reason.POSITION, _("shifted by {offsets}").format(offsets=several)
    if not constant and exact.places[first] > 0 and positions[first] == 0:
        reason = Reason.CHUNKS
        said = _("positions start again at token {token}").format(token=int(exact.places[first]))
    return Cause(reason, said, _set("positions", lambda places: positions))


def _frequencies(turned: torch.Tensor, places: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Return the frequency of each pair, from the angles at each position.

    Angles are known only up to whole turns. So the frequency is measured at position 1, and then more precisely at
    later positions.
    """
    summed = torch.stack([turned[places == place].sum((0, 1)) for place in range(int(places.max()) + 1)])
    found = summed[1].angle() if len(summed) > 1 else own
    place = 2
    while place < len(summed):
        turns = ((found * place - summed[place].angle()) / math.tau).round()
        found = (summed[place].angle() + turns * math.tau) / place
        place = max(place + 1, place * 3 // 2)
    return found


def _other_layout(search: _Search) -> Edit:
    """Let latent attention rotate pairs as the other setting says, and any other attention as GLM's does."""

    def edit(reference: Reference) -> Iterator[tuple[Any, str, Any]]:
        config, name = reference.decoder.config, "apply_rotary_pos_emb"
        file = sys.modules[type(reference.module(search.operator.module)).__module__]
        if getattr(config, "rope_interleave", None) is not None:
            yield config, "rope_interleave", not config.rope_interleave
        elif hasattr(file, name):
            yield file, name, apply_rotary_pos_emb

    return edit


# Attention.


def _attention(search: _Search) -> Iterator[Cause]:
    if not hasattr(search.module, "scaling"):  # linear attention
        return
    yield from _seen(search)
    if search.operator.name.startswith("layers.0."):
        prompts, token = search.recording.batch.prompts, getattr(search.config, "pad_token_id", None) or 0
        for length in (max(prompts), search.sampling.prompt_length):
            counts = tuple(max(0, length - each) for each in prompts)
            said = _("attention sees the pad tokens before each prompt, up to {length} tokens").format(length=length)
            if any(counts):
                yield Cause(Reason.PADDING, said, _set("pads", (counts, token)))
    own, edit = search.module.scaling, partial(_of_all, "self_attn", "scaling")
    yield from _other(Reason.SCALE, own, [search.measured(edit, own)], edit)


def _seen(search: _Search) -> Iterator[Cause]:
    """Measure which tokens each bad token sees: from one on up to itself, or from its sequence's first up to one."""
    exact, values, name = search.pair.exact, search.recording.values, search.operator.module
    found = values.get(f"{name}.{ATTENTION}", values.get(f"{name}.o_proj:in"))
    given = [values[each] for each in search.operator.given]
    if search.operator.kind is Kind.BLOCK:
        given = exact.heads(name, given[0].to(exact.dtype))
    if found is None:
        return
    heads, made = search.config.num_attention_heads, found.double()
    sizes = given[0].shape[1] // heads, made.shape[1] // heads
    query, key, value = (
        each.double().unflatten(1, (-1, size)).transpose(0, 1)
        for each, size in zip(given, (sizes[0], *sizes), strict=True)
    )
    key, value = (each.repeat_interleave(heads // len(each), dim=0) for each in (key, value))
    first, last = torch.arange(len(made)) - exact.places, torch.arange(len(made))
    bad = torch.nonzero(search.judgement.beyond).flatten().tolist()
    for row in bad:
        weights = (query[:, row, None] * key).sum(-1) * search.module.scaling
        weights = (weights - weights.amax(1, keepdim=True)).exp()[..., None]
        # [heads, tokens, features and the sum of the weights]
        sums = torch.cat([weights * value, weights], dim=-1).cumsum(1)
        before = torch.nn.functional.pad(sums, (0, 0, 1, 0))[:, :-1]
        start = int(first[row])
        seen = torch.cat([sums[:, row, None] - before[:, : row + 1], sums[:, start:] - before[:, start, None]], dim=1)
        errors = (seen[..., :-1] / seen[..., -1:]).transpose(0, 1).flatten(1) - made[row]
        best = int(errors.norm(dim=1).nan_to_num(nan=torch.inf).argmin())
        first[row], last[row] = (best, row) if best <= row else (start, start + best - row - 1)
    three = torch.stack([torch.tensor(bad[0]), first[bad[0]], last[bad[0]]])
    (token, begin, end), (row, first_row, last_row) = exact.places[three].tolist(), exact.rows[three].tolist()
    said = _("token {token} of sequence {row} sees tokens {first} to {last}")
    if first_row != row:
        said = _(
            "token {token} of sequence {row} sees tokens {first} to {last} of sequences {first_row} to {last_row}"
        )
    said = said.format(token=token, row=row, first=begin, last=end, first_row=first_row, last_row=last_row)
    begins, reason = exact.places[first[bad]].tolist(), Reason.MASK
    common = statistics.mode(begins)
    if common and begins.count(common) > len(begins) / 2:
        reason, said = Reason.CHUNKS, _("tokens from {token} on do not see earlier tokens").format(token=common)
    order = torch.arange(len(made))
    yield Cause(reason, said, _set("allowed", lambda *given: (order >= first[:, None]) & (order <= last[:, None])))


# Weights.


def _linear(search: _Search) -> Iterator[Cause]:
    name = search.operator.module
    for path, module in search.module.named_modules():
        weight, whole = getattr(module, "weight", None), f"{name}.{path}".rstrip(".")
        if weight is None or weight.dim() != 2:
            continue
        if getattr(module, "bias", None) is not None:
            edit = _parameters({f"{whole}.bias": torch.zeros_like(module.bias)})
            yield Cause(Reason.BIAS, _("{name} without its bias").format(name=whole), edit)
        edit = _parameters({f"{whole}.weight": weight.T.reshape(weight.shape)})
        yield Cause(Reason.TRANSPOSED, _("the weight of {name} is transposed").format(name=whole), edit)
    if name == HEAD and not search.config.tie_word_embeddings:
        edit = _parameters({f"{HEAD}.weight": search.pair.exact.decoder.embed_tokens.weight})
        said = _("the head shares the embedding's weight, but the trainer's head does not")
        yield Cause(Reason.TIE, said, edit)


def _weights(search: _Search) -> Iterator[Cause]:
    """Exchange the weights of a module that the side holds differently from the trainer."""
    kind, differing = search.operator.kind, search.differing
    name = "" if kind is Kind.MODEL else f"{search.operator.module}."
    own = [path for path in differing if path.startswith(name)]
    if not own:
        return
    said = [search.explained(path) for path in own]
    reason = Reason.TRANSPOSED if "transposed" in said[0] else Reason.WEIGHT
    if kind is Kind.HEAD and search.config.tie_word_embeddings:
        reason = Reason.TIE
        said = [_("the head does not share the embedding's weight, but the trainer's head does")]
    if more := len(differing) - len(own):
        words = ngettext("{count} other weight differs", "{count} other weights differ", more)
        said.append(words.format(count=more))
    edit = _parameters({path: differing[path] for path in own})
    yield Cause(reason, _("; ").join(said[:2] + said[2:][-1:]), edit, _parameters(differing))


def _fitted(search: _Search) -> Iterator[Cause]:
    """Measure the weight that the outputs show. A module may multiply with an old copy of the weight that it holds."""
    name, module = search.operator.module, search.module
    given, made = (search.recording.values[f"{name}:{each}"].double() for each in ("in", "out"))
    # With as many features as tokens, some weight fits any outputs.
    fits_any = len(given) < 1.1 * given.shape[1] or search.judgement.verdict is not Verdict.DIFFERENT
    if fits_any or not bool(given.isfinite().all() and made.isfinite().all()):
        return
    bias = getattr(module, "bias", None)
    weight = torch.linalg.lstsq(given, made if bias is None else made - bias).solution.T
    said = _("{name} multiplies with another weight")
    if search.recording.held(f"{name}.weight") is not None:
        said = _("{name} multiplies with another weight, which this side does not hold")
    yield Cause(Reason.WEIGHT, said.format(name=name), _parameters({f"{name}.weight": weight}))


# Experts and log-probabilities.


def _routing(search: _Search) -> Iterator[Cause]:
    owners, name = (search.module, search.module.gate), f"{search.operator.module}.gate.e_score_correction_bias"
    tried: Mapping[str, Iterable[object]] = {
        "norm_topk_prob": (True, False),
        "top_k": range(1, min(search.config.num_experts_per_tok + 2, len(search.module.gate.weight)) + 1),
        "routed_scaling_factor": (1.0,),
    }
    for leaf, values in tried.items():
        own = next((getattr(each, leaf) for each in owners if hasattr(each, leaf)), None)
        if own is not None:
            said = _("{setting} is {found} instead of {own}")
            yield from _other(Reason.ROUTING, own, values, partial(_of_all, "mlp|gate", leaf), said, setting=leaf)
    bias = getattr(search.module.gate, "e_score_correction_bias", None)
    if bias is not None:
        yield Cause(Reason.BIAS, _("without e_score_correction_bias"), _parameters({name: torch.zeros_like(bias)}))


def _chosen(search: _Search) -> Iterator[Cause]:
    """Measure the weight of each expert for each bad token."""
    exact, name, bad = search.pair.exact, search.operator.name, search.judgement.beyond
    given, made = (search.recording.values[f"{name}:{each}"][bad].double() for each in ("in", "out"))
    if len(search.module.gate.weight) >= made.shape[1] or not bool(made.isfinite().all()):
        return
    right = exact.compute(search.operator, search.recording.values)[bad]
    outputs, shared = exact.experts(name, given)
    used, own = (
        torch.linalg.lstsq(outputs.transpose(1, 2), (each - shared)[..., None]).solution[..., 0]
        for each in (made, right)
    )
    count = search.config.num_experts_per_tok
    experts = [sorted(each[0].abs().topk(count)[1].tolist()) for each in (used, own)]
    said, shown = _("token {token} of sequence {row} has the experts {found} instead of {own}"), [*map(str, experts)]
    if experts[0] == experts[1]:
        said = _("token {token} of sequence {row} has experts' weights of {found} instead of {own}")
        shown = [", ".join(f"{float(each[0, number]):.3g}" for number in experts[0]) for each in (used, own)]
    token, row = int(exact.places[bad][0]), int(exact.rows[bad][0])
    said = said.format(token=token, row=row, found=shown[0], own=shown[1])

    def edit(reference: Reference) -> Iterator[tuple[Any, str, Any]]:
        module = reference.module(name)
        before = module.forward

        def forward(hidden: torch.Tensor) -> torch.Tensor:
            found = before(hidden)
            found = found[0] if isinstance(found, tuple) else found
            mine = found.clone()
            each, rest = reference.experts(name, hidden[0][bad])
            mine[0, bad] = (each * used.to(each.dtype)[..., None]).sum(1) + rest
            return mine

        yield module, "forward", forward

    yield Cause(Reason.ROUTING, said, edit)


def _sampled(search: _Search) -> Iterator[Cause]:
    own, sampling, edit = search.pair.exact.temperature, search.sampling, partial(_set, "temperature")
    yield from _other(Reason.TEMPERATURE, own, _rounded(search.measured(edit, own), 2, 3), edit)
    if sampling.top_k > 0 or sampling.top_p < 1:
        said = _(
            "log-probabilities are computed only among the tokens that top_k={top_k} and top_p={top_p} keep"
        ).format(top_k=sampling.top_k, top_p=sampling.top_p)
        yield Cause(Reason.FILTER, said, _set("kept", lambda logits: _kept(sampling, logits)))


def _labels(search: _Search) -> Iterator[Cause]:
    """Try what ranks compute if each shifts only its own part of a packed batch: its last label is its first token."""
    batch, answers = search.recording.batch, search.recording.batch.answers()
    for groups, parts in itertools.product((1, 2, 4), (2, 4, 8)):
        targets = batch.targets()
        for group in range(groups):
            rows = range(group, len(batch.tokens), groups)
            packed = [(row, at) for row in rows for at in range(len(batch.tokens[row]))]
            length = -(-len(packed) // parts)
            for begin in range(0, len(packed) - length + 1, length):
                if packed[begin + length - 1] in answers:
                    row, at = packed[begin]
                    targets[answers.index(packed[begin + length - 1])] = batch.tokens[row][at]
        if not torch.equal(targets, batch.targets()):
            said = _("at the end of each of {parts} parts of packed sequences, the part's first token")
            yield Cause(Reason.LABELS, said.format(parts=parts), _set("targets", targets))


def _kept(sampling: Sampling, logits: torch.Tensor) -> torch.Tensor:
    order = logits.argsort(dim=-1, descending=True)
    ranks = order.argsort(dim=-1)
    keep = ranks < (sampling.top_k if sampling.top_k > 0 else logits.shape[-1])
    wide = (logits / sampling.temperature).masked_fill(~keep, -torch.inf).softmax(-1).gather(-1, order)
    return keep & ((wide.cumsum(-1) - wide).gather(-1, ranks) < sampling.top_p)


def _narrower(search: _Search) -> Cause | None:
    """Return the dtype that explains the error, if the operator's outputs also are numbers of that dtype."""
    judgement = search.judgement
    if judgement.verdict is not Verdict.LARGER:
        return None
    made = search.recording.together(search.operator.made)
    if search.operator.kind is Kind.BLOCK:
        # The projection behind an attention may be right.
        made = search.recording.values.get(f"{search.operator.name}.o_proj:in", made)
    made = made[judgement.beyond]
    own = search.recording.dtype
    for dtype in (torch.bfloat16, torch.float16):
        alike = float((made.to(dtype).to(made.dtype) == made).double().mean())
        # Most numbers of a coarse dtype are also numbers of a finer one.
        if torch.finfo(dtype).eps > torch.finfo(own).eps and alike > 0.99:
            said, share = _instead(*(str(each).removeprefix("torch.") for each in (dtype, own))), judgement.tokens
            if share <= 0.99:
                said = _("{said}, for {share} of the tokens").format(said=said, share=f"{share:.0%}")
            return Cause(Reason.DTYPE, said)
    return None


_CANDIDATES: Mapping[Kind, tuple[Callable[[_Search], Iterator[Cause]], ...]] = {
    Kind.NORM: (_epsilons, _weights),
    Kind.ROTARY: (_rotary, _weights),
    Kind.ATTENTION: (_attention, _weights),
    Kind.BLOCK: (_rotary, _attention, _linear, _weights),
    Kind.LINEAR: (_linear, _weights, _fitted),
    Kind.HEAD: (_linear, _weights),
    Kind.ROUTER: (_linear, _weights),
    Kind.EXPERTS: (_routing, _weights, _chosen),
    Kind.LOGPROBS: (_sampled, _labels),
    Kind.FUSED: (_sampled, _labels),
}


# Edits.


def _set(name: str, value: Any) -> Edit:
    return lambda reference: [(reference, name, value)]


def _frequency(values: torch.Tensor, factor: float | None = None) -> Edit:
    def edit(reference: Reference) -> Iterator[tuple[Any, str, Any]]:
        rotary = reference.decoder.rotary_emb
        # Engines and trainers compute frequencies in float32.
        yield rotary, "inv_freq", values.float().to(rotary.inv_freq.dtype)
        yield rotary, "attention_scaling", rotary.attention_scaling if factor is None else factor

    return edit


def _of_all(names: str, leaf: str, value: object) -> Edit:
    """Set an attribute of the modules with these last names, divided by `|`, in each layer."""
    return lambda reference: [
        (module, leaf, value)
        for path, module in reference.decoder.named_modules()
        if path.rpartition(".")[2] in names.split("|") and hasattr(module, leaf)
    ]


def _parameters(held: Mapping[str, torch.Tensor]) -> Edit:
    def edit(reference: Reference) -> Iterator[tuple[Any, str, Any]]:
        for path, value in held.items():
            name, _, leaf = path.rpartition(".")
            owner = reference.module(name)
            before = getattr(owner, leaf)
            made = value.detach().to(before.dtype)
            # Another parameter may share the memory.
            yield owner, leaf, torch.nn.Parameter(made, False) if isinstance(before, torch.nn.Parameter) else made

    return edit
