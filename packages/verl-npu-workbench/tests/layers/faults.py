"""Faults of a trainer or an engine: each makes one of them compute another function, or more coarsely."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from verl_npu_workbench.layers.causes import Reason, Sampling
from verl_npu_workbench.layers.comparing import Comparison, Side, compare
from verl_npu_workbench.layers.recording import Recording, record
from verl_npu_workbench.layers.reference import causal

from .models import BATCH, answer, answer_padded, make, only, replaced

R = Reason
Given = tuple[Recording, Mapping[Reason, Recording]]
OUTPUTS = ("norm:out", "lm_head:in", "lm_head:out", "logprobs")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, and what should be found."""

    name: str
    kind: str
    operator: str
    reason: Reason
    seed: Callable[[Any], Recording | Given]
    """Returns the recording of a faulty side, made from a copy of the right model."""
    side: Side = Side.ENGINE
    dtype: torch.dtype = torch.float32
    changes: Mapping[str, object] = field(default_factory=dict)
    """Changes of the right model's configuration."""
    sampling: Sampling = field(default_factory=Sampling)


FAULTS: list[Fault] = []


def found(fault: Fault) -> Comparison:
    model = make(fault.kind, fault.dtype, **fault.changes)
    right = record(model, BATCH, fault.sampling.temperature)
    torch.manual_seed(2)
    seeded = fault.seed(copy.deepcopy(model))
    faulty, reruns = seeded if isinstance(seeded, tuple) else (seeded, {})
    sides = (right, faulty) if fault.side is Side.ENGINE else (faulty, right)
    return compare(model, *sides, fault.sampling, reruns)


def fault(name: str, kind: str, operator: str, reason: Reason, **more: Any) -> Callable[[Any], Any]:
    """Add a fault whose seed is the decorated function."""

    def add(seed: Callable[[Any], Recording | Given]) -> Callable[[Any], Recording | Given]:
        FAULTS.append(Fault(name, kind, operator, reason, seed, **more))
        return seed

    return add


def edited(name: str, kind: str, operator: str, reason: Reason, edit: Callable[[Any], object], **more: Any) -> None:
    """Add a fault that changes the model before it answers."""

    def seed(model: Any) -> Recording:
        edit(model)
        return answer(model)

    fault(name, kind, operator, reason, **more)(seed)


def frequencies(base: float, size: int) -> torch.Tensor:
    return 1.0 / base ** (torch.arange(0, size, 2).float() / size)


def part(name: str, kind: str, operator: str, reason: Reason, edit: Callable[[Any], object], **more: Any) -> None:
    """Add a fault that changes the operator's module."""
    path = operator if operator == "lm_head" else f"model.{operator}"
    edited(name, kind, operator, reason, lambda model: edit(model.get_submodule(path)), **more)


ROTARY, ATTENTION = "layers.0.self_attn.rotary", "layers.0.self_attn.attention"
YARN = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}

# Rotary embeddings.


def base(value: float, size: int) -> Callable[[Any], None]:
    return lambda model: setattr(model.model.rotary_emb, "inv_freq", frequencies(value, size))


edited("base 5e5 in bfloat16", "qwen3", ROTARY, R.BASE, base(5e5, 32), dtype=torch.bfloat16)
edited("base of latent attention", "deepseek_v3", ROTARY, R.BASE, base(1e6, 16))
edited("base in the trainer", "qwen3", ROTARY, R.BASE, base(2e6, 32), side=Side.TRAINER)


def slower(factor: float) -> Callable[[Any], None]:
    def edit(model: Any) -> None:
        model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq / factor

    return edit


edited("linear scaling by 8 in bfloat16", "qwen3", ROTARY, R.SCALING, slower(8), dtype=torch.bfloat16)
edited(
    "no factor of yarn",
    "qwen3",
    ROTARY,
    R.SCALING,
    lambda model: setattr(model.model.rotary_emb, "attention_scaling", 1.0),
    changes=YARN,
)


@fault("no yarn", "qwen2", ROTARY, R.SCALING, changes=YARN)
def no_yarn(model: Any) -> Recording:
    model.model.rotary_emb.inv_freq = frequencies(10000.0, 16)
    model.model.rotary_emb.attention_scaling = 1.0
    return answer(model)


@fault("yarn where there is none", "qwen3_moe", ROTARY, R.SCALING)
def yarn(model: Any) -> Recording:
    other = make("qwen3_moe", **YARN)
    model.model.rotary_emb = other.model.rotary_emb
    return answer(model)


def neighbours(original: Any, query: Any, key: Any, cos: Any, sin: Any, *args: Any, **named: Any) -> Any:
    def turn(heads: torch.Tensor) -> torch.Tensor:
        found = heads.clone()
        half = heads.shape[-1] // 2
        for pair in range(half):
            one, other = heads[..., 2 * pair], heads[..., 2 * pair + 1]
            c, s = cos[:, None, :, pair], sin[:, None, :, pair]
            found[..., 2 * pair] = one * c - other * s
            found[..., 2 * pair + 1] = other * c + one * s
        return found

    return turn(query), turn(key)


def with_neighbours(model: Any) -> Recording:
    with replaced(model, "apply_rotary_pos_emb", neighbours):
        return answer(model)


fault("layout in bfloat16", "qwen3", ROTARY, R.LAYOUT, dtype=torch.bfloat16)(with_neighbours)
edited(
    "layout of latent attention",
    "deepseek_v3",
    ROTARY,
    R.LAYOUT,
    lambda model: setattr(model.config, "rope_interleave", False),
)


@fault("positions from the padded batch", "qwen2", ROTARY, R.POSITION)
def padded_positions(model: Any) -> Recording:
    pads = torch.tensor([20 - prompt for prompt in BATCH.prompts])
    return answer(model, positions=lambda rows, places: places + pads[rows])


@fault("positions from 1 on in bfloat16", "qwen3", ROTARY, R.POSITION, dtype=torch.bfloat16)
def positions_from_one(model: Any) -> Recording:
    return answer(model, positions=lambda rows, places: places + 1)


@fault("positions go on over sequences", "qwen3_moe", ROTARY, R.POSITION, side=Side.TRAINER)
def running_positions(model: Any) -> Recording:
    return answer(model, positions=lambda rows, places: torch.arange(len(rows)))


# Norms.


def epsilon(value: float) -> Callable[[Any], None]:
    return lambda norm: setattr(norm, "variance_epsilon", value)


part("epsilon of the first norm", "qwen3", "layers.0.input_layernorm", R.EPSILON, epsilon(1e-5))
part("epsilon of queries", "qwen3_moe", "layers.0.self_attn.q_norm", R.EPSILON, epsilon(1e-3))
LATENT = "layers.0.self_attn.kv_a_layernorm"
part("large epsilon in bfloat16", "deepseek_v3", LATENT, R.EPSILON, epsilon(1e-1), dtype=torch.bfloat16)

# Attention.


def scale(value: float) -> Callable[[Any], None]:
    def edit(model: Any) -> None:
        for layer in model.model.layers:
            layer.self_attn.scaling = value

    return edit


edited("scale of another size in bfloat16", "qwen3", ATTENTION, R.SCALE, scale(16**-0.5), dtype=torch.bfloat16)
edited("scale without rotary dimensions", "deepseek_v3", ATTENTION, R.SCALE, scale(32**-0.5))
fault("not causal", "qwen2", ATTENTION, R.MASK)(
    lambda model: answer(model, allowed=lambda rows, places: rows[:, None] == rows)
)
fault("a window of 8 in bfloat16", "qwen3", ATTENTION, R.MASK, dtype=torch.bfloat16)(
    lambda model: answer(model, allowed=lambda rows, places: causal(rows, places) & (places[:, None] - places < 8))
)
fault("sequences see each other", "qwen3_moe", ATTENTION, R.MASK, side=Side.TRAINER)(
    lambda model: answer(model, allowed=lambda rows, places: torch.ones(len(rows), len(rows), dtype=torch.bool).tril())
)
fault("pads are seen", "qwen2", ATTENTION, R.PADDING)(lambda model: answer_padded(model, 20, 0))
fault("pads are seen, up to a longer prompt", "qwen3_moe", ATTENTION, R.PADDING, sampling=Sampling(prompt_length=32))(
    lambda model: answer_padded(model, 32, 0)
)

# Weights.


def stale(module: Any) -> None:
    module.weight.data = (module.weight + 0.02 * torch.randn(module.weight.shape)).to(module.weight.dtype)


part("stale queries", "qwen2", "layers.1.self_attn.q_proj", R.WEIGHT, stale)
part("stale embedding in bfloat16", "qwen3", "embed_tokens", R.WEIGHT, stale, dtype=torch.bfloat16)
part("stale router", "qwen3_moe", "layers.1.mlp.gate", R.WEIGHT, stale)
part("stale latent projection", "deepseek_v3", "layers.0.self_attn.kv_b_proj", R.WEIGHT, stale)
part("a layer of zeros", "qwen2", "layers.0.mlp.down_proj", R.WEIGHT, lambda module: module.weight.zero_())


@fault("a stale copy", "qwen2", "layers.1.self_attn.o_proj", R.WEIGHT)
def stale_copy(model: Any) -> Recording:
    module = model.model.layers[1].self_attn.o_proj
    copied = module.weight + 0.02 * torch.randn(module.weight.shape)
    module.forward = lambda given: given @ copied.T
    return answer(model)


@fault("only the first tokens are seen", "qwen2", ATTENTION, R.MASK, side=Side.TRAINER)
def first_tokens(model: Any) -> Recording:
    """verl#6345: the mask has as many tokens of each sequence as its answer has."""
    return answer(model, allowed=lambda rows, places: causal(rows, places) & (places < 12))


@fault("not causal in latent attention", "deepseek_v3", "layers.0.self_attn", R.MASK)
def not_causal_block(model: Any) -> Recording:
    made = answer(model, allowed=lambda rows, places: rows[:, None] == rows)
    heads = ("query", "key", "value", "attention")
    return only(made, [each for each in made.values if each.rpartition(".")[2] not in heads])


@fault("stale expert", "qwen3_moe", "layers.0.mlp", R.WEIGHT)
def stale_expert(model: Any) -> Recording:
    experts = model.model.layers[0].mlp.experts
    weight = experts.down_proj[3] if hasattr(experts, "down_proj") else experts[3].down_proj.weight
    weight += 0.05 * torch.randn(weight.shape)
    return answer(model)


@fault("gate and up exchanged", "qwen3", "layers.0.mlp.gate_proj", R.WEIGHT)
def exchanged_gate(model: Any) -> Recording:
    mlp = model.model.layers[0].mlp
    mlp.gate_proj.weight.data, mlp.up_proj.weight.data = mlp.up_proj.weight.data, mlp.gate_proj.weight.data
    return answer(model)


def transpose(module: Any) -> None:
    module.weight.data = module.weight.data.T.contiguous().view(module.weight.shape)


part("transposed output", "qwen2", "layers.0.self_attn.o_proj", R.TRANSPOSED, transpose)
part("transposed gate in bfloat16", "qwen3", "layers.1.mlp.gate_proj", R.TRANSPOSED, transpose, dtype=torch.bfloat16)


def drop(module: Any) -> None:
    module.bias = None


part("no bias of values in bfloat16", "qwen2", "layers.1.self_attn.v_proj", R.BIAS, drop, dtype=torch.bfloat16)
edited(
    "no bias of the choice",
    "deepseek_v3",
    "layers.1.mlp",
    R.BIAS,
    lambda model: model.model.layers[1].mlp.gate.e_score_correction_bias.zero_(),
)


@fault("the embedding as head", "qwen3", "lm_head", R.TIE)
def tied(model: Any) -> Recording:
    model.lm_head.weight = model.model.embed_tokens.weight
    return answer(model)


@fault("a head of its own", "qwen2", "lm_head", R.TIE, changes={"tie_word_embeddings": True})
def untied(model: Any) -> Recording:
    model.lm_head.weight = torch.nn.Parameter(
        model.lm_head.weight + 0.05 * torch.randn(model.lm_head.weight.shape), requires_grad=False
    )
    return answer(model)


# Dtypes.


def narrow(dtype: torch.dtype) -> Callable[[Any], None]:
    def edit(module: Any) -> None:
        forward = module.to(dtype).forward
        module.forward = lambda given: forward(given.to(dtype)).float()

    return edit


part("head in bfloat16", "qwen3", "lm_head", R.DTYPE, narrow(torch.bfloat16))
part("head in float16", "qwen2", "lm_head", R.DTYPE, narrow(torch.float16))
part("values in bfloat16", "qwen3_moe", "layers.1.self_attn.v_proj", R.DTYPE, narrow(torch.bfloat16))

# Experts.


def choose(leaf: str, value: object) -> Callable[[Any], None]:
    def edit(model: Any) -> None:
        for layer in model.model.layers:
            for owner in (layer.mlp, getattr(layer.mlp, "gate", None)):
                if hasattr(owner, leaf):
                    setattr(owner, leaf, value)

    return edit


edited(
    "weights of experts are not normalised",
    "qwen3_moe",
    "layers.0.mlp",
    R.ROUTING,
    choose("norm_topk_prob", False),
    changes={"norm_topk_prob": True},
)
edited("one expert less", "qwen3_moe", "layers.0.mlp", R.ROUTING, choose("top_k", 1), dtype=torch.bfloat16)
edited("no factor of experts", "deepseek_v3", "layers.1.mlp", R.ROUTING, choose("routed_scaling_factor", 1.0))


@fault("each rank has its experts in another order", "qwen3_moe", "layers.0.mlp", R.ROUTING)
def other_order(model: Any) -> Recording:
    mlp = model.model.layers[0].mlp
    mlp.gate.weight.copy_(mlp.gate.weight.flip(0))
    made = answer(model)
    # The router has other outputs, too.
    return only(made, [name for name in made.values if not name.endswith("gate:out")], held=False)


# Log-probabilities.


@fault("ranks shift their own labels", "qwen2", "logprobs", R.LABELS, side=Side.TRAINER)
def own_labels(model: Any) -> Recording:
    """verl#6068: log-probabilities without logits, and the last label of each half is its first token."""
    made = answer(model)
    values = {name: value.clone() for name, value in made.values.items()}
    place = BATCH.answers().index((1, 26))
    token = torch.tensor(BATCH.tokens[0][0])
    values["logprobs"][place] = values.pop("lm_head:out")[place].log_softmax(-1)[token]
    return Recording(made.batch, made.dtype, values)


fault("log-probabilities without temperature", "qwen2", "logprobs", R.TEMPERATURE, sampling=Sampling(0.7))(
    lambda model: answer(model)
)
fault("log-probabilities at another temperature", "qwen3", "logprobs", R.TEMPERATURE, dtype=torch.bfloat16)(
    lambda model: answer(model, logprobs=lambda logits: logits / 0.6)
)


def best(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Keep the best tokens, and the ones that were sampled."""
    return logits.masked_fill(logits < logits.topk(count, dim=-1)[0][:, -1:], -torch.inf)


fault("log-probabilities among the best 100", "qwen3", "logprobs", R.FILTER, sampling=Sampling(top_k=127))(
    lambda model: answer(model, logprobs=lambda logits: best(logits, 127))
)


def nucleus(logits: torch.Tensor, share: float) -> torch.Tensor:
    ordered, order = logits.softmax(-1).sort(descending=True, dim=-1)
    drop = ordered.cumsum(-1) - ordered >= share
    return logits.masked_fill(torch.zeros_like(drop).scatter(1, order, drop), -torch.inf)


fault("log-probabilities among the likeliest", "qwen2", "logprobs", R.FILTER, sampling=Sampling(top_p=0.9999))(
    lambda model: answer(model, logprobs=lambda logits: nucleus(logits, 0.9999))
)

# The engine's ways to compute a request.


@fault("a chunk does not see the chunk before", "qwen2", ATTENTION, R.CHUNKS)
def blind_chunk(model: Any) -> Recording:
    return answer(
        model,
        allowed=lambda rows, places: causal(rows, places) & ~((places[:, None] >= 16) & (places < 16)),
    )


@fault("positions start again in a chunk", "qwen3", ROTARY, R.CHUNKS)
def restarted(model: Any) -> Recording:
    return answer(model, positions=lambda rows, places: places % 16)


def cached(count: int, other: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Given]:
    """The attention reads other keys and values for the first tokens of each sequence, if they are cached."""

    def attend(original: Any, module: Any, query: Any, key: Any, value: Any, *args: Any, **named: Any) -> Any:
        first = torch.tensor([at < count for _, at in BATCH.places()])[:, None]
        key, value = (torch.where(first, other(each), each) for each in (key, value))
        return original(module, query, key, value, *args, **named)

    def seed(model: Any) -> Given:
        with replaced(model, "eager_attention_forward", attend):
            faulty = answer(model)
        return faulty, {R.GRAPHS: faulty, R.PREFIX: answer(model)}

    return seed


fault("a cached prefix of old weights", "qwen2", ATTENTION, R.PREFIX)(cached(4, lambda each: each * 1.1))
fault("a cached prefix of another prompt", "qwen3_moe", ATTENTION, R.PREFIX)(cached(4, lambda each: each.flip(2)))


@fault("graphs with old weights", "qwen3", "layers", R.GRAPHS)
def old_graph(model: Any) -> Given:
    right = answer(copy.deepcopy(model))
    stale(model.model.layers[0].mlp.up_proj)
    return only(answer(model), OUTPUTS), {R.PREFIX: only(answer(model), OUTPUTS), R.GRAPHS: only(right, OUTPUTS)}


@fault("graphs with the hidden states of other tokens", "qwen2", "layers", R.GRAPHS)
def other_rows(model: Any) -> Given:
    right = answer(model)
    values = {name: right.values[name].roll(1, 0) if name == "norm:out" else right.values[name] for name in OUTPUTS}
    return Recording(right.batch, right.dtype, values), {R.GRAPHS: only(right, OUTPUTS)}
