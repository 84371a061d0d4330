"""Megatron's distributed checkpoint, read without upstream's merger, so that its result can be judged by it.

No class of Megatron's is needed, and nothing that a file names is run: see pickles.

What Hugging Face's format calls Megatron's tensors, and which part of them is which.

Megatron keeps query, key and value of a group of heads beside each other in one tensor, and gate and up projection in
another. Its distributed checkpoints stack the layers, and the experts of a layer, along the first dimensions.
The names are those that verl/model_merger/megatron_model_merger.py of v0.6.1 converts.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from verl_npu.errors import CheckpointError
from verl_npu.language import gettext as _

from .layout import Layout
from .pickles import check_objects, metadata, reader

_HEAD = "output_layer.weight"
_MODEL = ("embedding.", "decoder.", "output_layer.")
"""What the keys of a model start with; an optimizer's lie beside them in the same folder."""


def has_accelerator() -> bool:
    """Whether this process's torch has a device on which Megatron can make a model."""
    import torch

    # torch_npu brings NPUs in as `import torch` loads it.
    npu = getattr(torch, "npu", None)
    return bool(torch.cuda.is_available() or (npu is not None and npu.is_available()))


def whole_tensors(layout: Layout) -> Mapping[str, Callable[[], Any]]:
    """Return each tensor's name in Hugging Face's format, and what reads it.

    Raises:
        CheckpointError: it is of a value model, or has a tensor of which it is not known what Hugging Face's format
            calls it.
    """
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    folder = layout.shards[0]
    shape = _shape(layout.huggingface / "config.json")
    known = metadata(folder)
    check_objects(folder, known, _MODEL)
    entries = known.state_dict_metadata
    if isinstance(head := entries.get(_HEAD), TensorStorageMetadata) and head.size[0] == 1:
        # Seen at v0.6.1, with --is-value-model too; from 796871d7 to 1dda039b it makes a language model (value=False).
        raise CheckpointError(
            subject=str(folder),
            expected=_("a language model"),
            found=_("a value model: verl's merger would leave out its bias, and fill its output layer with zeros"),
            fix=_(
                "train on from it as it is, or read {head} and output_layer.bias by torch.distributed.checkpoint"
            ).format(head=_HEAD),
        )
    found: dict[str, Callable[[], Any]] = {}
    for key, entry in entries.items():
        if not key.startswith(_MODEL) or not isinstance(entry, TensorStorageMetadata) or "_extra_state" in key:
            continue
        read = partial(_read, reader(folder, known), key, tuple(entry.size), entry.properties.dtype)
        for name, part in parts_of(key, tuple(entry.size), shape):
            if name in found:
                raise _refusal(
                    folder, _("one tensor for {name}").format(name=name), _("{key} as another one").format(key=key)
                )
            found[name] = partial(_part, read, part)
    if not found:
        raise CheckpointError(
            subject=str(folder),
            expected=_("the tensors of a model"),
            found=_("none"),
            fix=_("use {huggingface}, where the job saved the whole model").format(huggingface=layout.huggingface)
            if layout.is_whole
            else _("have the job save it: actor.checkpoint.save_contents with model in it"),
        )
    return found


def _part(read: Callable[[], Any], part: Callable[[Any], Any]) -> Any:
    return part(read())


def _read(storage: Any, key: str, size: tuple[int, ...], dtype: Any) -> Any:
    import torch
    from torch.distributed.checkpoint import load

    state = {key: torch.empty(size, dtype=dtype)}
    with warnings.catch_warnings():
        # That there are no process groups, as if that were not what no_dist says.
        warnings.simplefilter("ignore", UserWarning)
        load(state, storage_reader=storage, no_dist=True)
    return state[key]


def _shape(path: Path) -> Shape:
    config = json.loads(path.read_text(encoding="utf-8"))
    text = config.get("text_config") or config
    try:
        heads = int(text["num_attention_heads"])
        return Shape(
            heads=heads,
            groups=int(text.get("num_key_value_heads") or heads),
            vocabulary=int(text["vocab_size"]),
            layers=int(text["num_hidden_layers"]),
            shared_expert="shared_expert" if config.get("model_type") == "qwen2_moe" else "shared_experts",
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            subject=str(path),
            expected=_("the configuration of a language model"),
            found=_("one without {error}").format(error=error),
            fix=_("copy it again from where rank 0 saved the checkpoint"),
        ) from error


def _refusal(folder: Path, expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        subject=str(folder), expected=expected, found=found, fix=_("merge another checkpoint; nothing was written")
    )


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
        yield _ALONE[key], _unchanged
    elif key in _ROWS:
        yield _ROWS[key], partial(_rows, shape.vocabulary)
    elif (found := _LAYER.fullmatch(key)) is not None:
        if found["layer"] is not None:
            yield from _layer(key, int(found["layer"]), found["rest"], size, shape, _unchanged)
        elif size[0] != shape.layers:
            raise _bad_key(key, _("{layers} layers, as config.json says").format(layers=shape.layers), f"{size[0]}")
        else:
            for index in range(size[0]):
                yield from _layer(key, index, found["rest"], size[1:], shape, partial(_index, index))
    else:
        raise _bad_key(key, _("a name that verl's merger converts"), _("another one"))


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
        raise _bad_key(key, _("a name that verl's merger converts"), _("another one"))
    return f"{_IN_A_LAYER[name]}.{kind}"


def _projections(prefix: str, rest: str, of: Part) -> Iterator[tuple[str, Part]]:
    if rest.startswith("linear_fc1"):
        yield f"{prefix}.gate_proj.weight", partial(_then, of, partial(_half, 0))
        yield f"{prefix}.up_proj.weight", partial(_then, of, partial(_half, 1))
    else:
        yield f"{prefix}.down_proj.weight", of


def _unchanged(tensor: Any) -> Any:
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


def _bad_key(key: str, expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        subject=_("Megatron's tensor {key}").format(key=key),
        expected=expected,
        found=found,
        fix=_("save this model with actor.megatron.use_mbridge=True, which writes Hugging Face's format by itself"),
    )
