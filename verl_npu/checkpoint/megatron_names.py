"""What Hugging Face's format calls Megatron's tensors, and which part of them is which.

Megatron keeps query, key and value of a group of heads beside each other in one tensor, and gate and up projection in
another. Its distributed checkpoints stack the layers, and the experts of a layer, along the first dimensions.
The names are those that verl/model_merger/megatron_model_merger.py of v0.6.1 converts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import CheckpointError

__all__ = ["Shape", "parts_of"]

_ALONE = {
    "decoder.final_layernorm.weight": "model.norm.weight",
    "decoder.final_layernorm.bias": "model.norm.bias",
}
_ROWS = {
    # Rows beyond the vocabulary fill the last rank's part.
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "output_layer.weight": "lm_head.weight",
}
_LAYER = re.compile(r"decoder\.layers\.(?:(?P<layer>\d+)\.)?(?P<rest>.+)")
_EXPERTS = re.compile(r"mlp\.experts\.experts\.(?:(?P<expert>\d+)\.)?(?P<rest>linear_fc[12]\.weight)")
_IN_A_LAYER = {
    "input_layernorm": "input_layernorm",
    "self_attention.linear_qkv.layer_norm": "input_layernorm",
    "self_attention.q_layernorm": "self_attn.q_norm",
    "self_attention.k_layernorm": "self_attn.k_norm",
    "self_attention.linear_proj": "self_attn.o_proj",
    "self_attention.linear_q_proj": "self_attn.q_proj",
    "self_attention.linear_q_down_proj": "self_attn.q_a_proj",
    "self_attention.linear_q_up_proj.layer_norm": "self_attn.q_a_layernorm",
    "self_attention.linear_q_up_proj": "self_attn.q_b_proj",
    "self_attention.linear_kv_down_proj": "self_attn.kv_a_proj_with_mqa",
    "self_attention.linear_kv_up_proj.layer_norm": "self_attn.kv_a_layernorm",
    "self_attention.linear_kv_up_proj": "self_attn.kv_b_proj",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "mlp.linear_fc1.layer_norm": "post_attention_layernorm",
    "mlp.linear_fc2": "mlp.down_proj",
    "mlp.router": "mlp.gate",
}

Part = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model's configuration says where its tensors are cut."""

    heads: int
    groups: int
    """Heads of keys and values."""
    vocabulary: int
    layers: int
    shared_expert: str
    """What the model calls the expert that every token goes to."""


def parts_of(key: str, size: tuple[int, ...], shape: Shape) -> Iterator[tuple[str, Part]]:
    """Yield the names that one of Megatron's tensors has in Hugging Face's format, and what cuts each out of it.

    Raises:
        CheckpointError: the key is not known.
    """
    if key in _ALONE:
        yield _ALONE[key], _whole
    elif key in _ROWS:
        yield _ROWS[key], partial(_rows, shape.vocabulary)
    elif (found := _LAYER.fullmatch(key)) is not None:
        if found["layer"] is not None:
            yield from _layer(key, int(found["layer"]), found["rest"], size, shape, _whole)
        elif size[0] != shape.layers:
            raise _refusal(key, f"{shape.layers} layers, as config.json says", f"{size[0]}")
        else:
            for index in range(size[0]):
                yield from _layer(key, index, found["rest"], size[1:], shape, partial(_index, index))
    else:
        raise _refusal(key, "a name that verl's merger converts", "another one")


def _layer(
    key: str, index: int, rest: str, size: tuple[int, ...], shape: Shape, of: Part
) -> Iterator[tuple[str, Part]]:
    prefix = f"model.layers.{index}"
    experts = _EXPERTS.fullmatch(rest)
    if experts is not None and experts["expert"] is not None:
        yield from _projections(f"{prefix}.mlp.experts.{experts['expert']}", experts["rest"], of)
    elif experts is not None:
        for expert in range(size[0]):
            cut = partial(_then, of, partial(_index, expert))
            yield from _projections(f"{prefix}.mlp.experts.{expert}", experts["rest"], cut)
    elif rest in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias"):
        for place, letter in enumerate("qkv"):
            name = f"{prefix}.self_attn.{letter}_proj.{rest.rpartition('.')[2]}"
            yield name, partial(_then, of, partial(_attention, shape.heads // shape.groups, shape.groups, place))
    elif rest.startswith("mlp.shared_experts.linear_fc"):
        yield from _projections(f"{prefix}.mlp.{shape.shared_expert}", rest.removeprefix("mlp.shared_experts."), of)
    elif rest == "mlp.shared_experts.gate_weight":
        yield f"{prefix}.mlp.{shape.shared_expert}_gate.weight", of
    elif rest == "mlp.router.expert_bias":
        yield f"{prefix}.mlp.gate.e_score_correction_bias", of
    elif rest == "mlp.linear_fc1.weight":
        yield from _projections(f"{prefix}.mlp", "linear_fc1.weight", of)
    else:
        yield f"{prefix}.{_renamed(key, rest)}", of


def _renamed(key: str, rest: str) -> str:
    # A norm that is fused with what follows it is called layer_norm_weight.
    name, mark, kind = rest.rpartition(".")
    if kind.startswith("layer_norm_"):
        name, kind = f"{name}.layer_norm", kind.removeprefix("layer_norm_")
    if name not in _IN_A_LAYER or not mark or kind not in ("weight", "bias"):
        raise _refusal(key, "a name that verl's merger converts", "another one")
    return f"{_IN_A_LAYER[name]}.{kind}"


def _projections(prefix: str, rest: str, of: Part) -> Iterator[tuple[str, Part]]:
    if rest.startswith("linear_fc1"):
        yield f"{prefix}.gate_proj.weight", partial(_then, of, partial(_half, 0))
        yield f"{prefix}.up_proj.weight", partial(_then, of, partial(_half, 1))
    else:
        yield f"{prefix}.down_proj.weight", of


def _whole(tensor: Any) -> Any:
    return tensor


def _index(index: int, tensor: Any) -> Any:
    return tensor[index]


def _rows(count: int, tensor: Any) -> Any:
    return tensor[:count]


def _half(which: int, tensor: Any) -> Any:
    rows = tensor.shape[0] // 2
    return tensor[which * rows : (which + 1) * rows]


def _attention(queries: int, groups: int, place: int, tensor: Any) -> Any:
    """Return the queries, keys or values of all groups; each group has its `queries` heads, then one of either."""
    grouped = tensor.reshape(groups, queries + 2, -1, *tensor.shape[1:])
    heads = grouped[:, :queries] if place == 0 else grouped[:, queries + place - 1]
    return heads.reshape(-1, *tensor.shape[1:])


def _then(first: Part, second: Part, tensor: Any) -> Any:
    return second(first(tensor))


def _refusal(key: str, expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        subject=f"Megatron's tensor {key}",
        expected=expected,
        found=found,
        fix="save this model with actor.megatron.use_mbridge=True, which writes Hugging Face's format by itself",
    )
