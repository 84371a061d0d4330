"""Reads the tensors of a distributed Megatron checkpoint without upstream's merger.

Megatron keeps the query, key, and value of a group of heads side by side in one tensor, and the gate and up
projections in another. It stacks the layers, and the experts of a layer, along the first dimensions. The known names
are the ones that verl/model_merger/megatron_model_merger.py of v0.6.1 converts.
"""

from __future__ import annotations

import json
import pickle
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from verl_npu.errors import SourceError
from verl_npu.language import gettext as _

_MODEL = ("embedding.", "decoder.", "output_layer.")
"""The prefixes of the model's keys. They are needed because the same folder also holds the optimizer's keys."""
_EMBEDDING, _HEAD = "embedding.word_embeddings.weight", "output_layer.weight"
_LAYER = re.compile(r"decoder\.layers\.(?:(?P<number>\d+)\.)?(?P<rest>.+)")
_EXPERT = re.compile(r"mlp\.experts\.experts\.(?:(?P<number>\d+)\.)?(?P<rest>linear_fc[12]\.weight)")
_NORM = "post_attention_layernorm"
_LAYER_NAMES = {
    "input_layernorm": ["input_layernorm"],
    "self_attention.linear_qkv.layer_norm": ["input_layernorm"],
    "self_attention.linear_qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attention.q_layernorm": ["self_attn.q_norm"],
    "self_attention.k_layernorm": ["self_attn.k_norm"],
    "self_attention.linear_proj": ["self_attn.o_proj"],
    "self_attention.linear_q_proj": ["self_attn.q_proj"],
    "self_attention.linear_q_down_proj": ["self_attn.q_a_proj"],
    "self_attention.linear_q_up_proj.layer_norm": ["self_attn.q_a_layernorm"],
    "self_attention.linear_q_up_proj": ["self_attn.q_b_proj"],
    "self_attention.linear_kv_down_proj": ["self_attn.kv_a_proj_with_mqa"],
    "self_attention.linear_kv_up_proj.layer_norm": ["self_attn.kv_a_layernorm"],
    "self_attention.linear_kv_up_proj": ["self_attn.kv_b_proj"],
    "pre_mlp_layernorm": [_NORM],
    "mlp.linear_fc1.layer_norm": [_NORM],
    "mlp.linear_fc1": ["mlp.gate_proj", "mlp.up_proj"],
    "mlp.linear_fc2": ["mlp.down_proj"],
    "mlp.router": ["mlp.gate"],
    "mlp.shared_experts.linear_fc1": ["mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"],
    "mlp.shared_experts.linear_fc2": ["mlp.shared_experts.down_proj"],
}
"""The names, in Hugging Face's format, of each tensor of a Megatron layer. A tensor that holds several parts has a
name for each part."""


def tensors(folder: Path, config: Path) -> Iterator[tuple[str, Any]]:
    """Yield each tensor with its name in Hugging Face's format.

    Loading the checkpoint makes torch unpickle `.metadata`, which can execute code. Upstream's merger has already
    unpickled the same file.

    Raises:
        SourceError: the checkpoint cannot be read, or a tensor has no known name in Hugging Face's format.
    """
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    storage: Any = FileSystemReader(folder)
    try:
        known = storage.read_metadata()
        model = json.loads(config.read_text(encoding="utf-8"))
        storage.read_metadata = lambda *given, **named: known  # once, and not for each tensor
        for key, entry in known.state_dict_metadata.items():
            if key.startswith(_MODEL) and isinstance(entry, TensorStorageMetadata) and "_extra_state" not in key:
                yield from parts_of(key, _read(storage, key, entry), model.get("text_config") or model)
    except SourceError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, EOFError, ImportError, pickle.UnpicklingError) as error:
        raise SourceError(
            subject=str(folder),
            expected=_("a complete Megatron checkpoint, and the file {config}").format(config=config),
            found=repr(error)[:300],
            fix=_(
                "copy the checkpoint again from the machine that saved it, or compare on the machine on "
                "which verl's merger ran"
            ),
        ) from error


def _read(storage: Any, key: str, entry: Any) -> Any:
    import torch
    from torch.distributed.checkpoint import load

    state = {key: torch.empty(tuple(entry.size), dtype=entry.properties.dtype)}
    with warnings.catch_warnings():
        # It warns that there are no process groups, although no_dist says so.
        warnings.simplefilter("ignore", UserWarning)
        load(state, storage_reader=storage, no_dist=True)
    return state[key]


def parts_of(key: str, tensor: Any, model: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Split one Megatron tensor, and yield the parts with their names in Hugging Face's format. `model` is the model's
    configuration.

    Raises:
        SourceError: the key is not known.
    """
    if key.startswith("decoder.final_layernorm."):
        yield f"model.norm.{key.rpartition('.')[2]}", tensor
    elif key in (_EMBEDDING, _HEAD):
        # Padding rows beyond the vocabulary fill up the last rank's part.
        name = "model.embed_tokens.weight" if key == _EMBEDDING else "lm_head.weight"
        yield name, tensor[: model["vocab_size"]]
    elif layer := _LAYER.fullmatch(key):
        for number, each in _unstacked(layer["number"], tensor):
            for name, part in _layer_parts(key, layer["rest"], each, model):
                yield f"model.layers.{number}.{name}", part
    else:
        raise _unknown(key)


def _unstacked(number: str | None, tensor: Any) -> Iterable[tuple[int | str, Any]]:
    return enumerate(tensor) if number is None else [(number, tensor)]


def _layer_parts(key: str, rest: str, tensor: Any, model: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    if expert := _EXPERT.fullmatch(rest):
        for number, each in _unstacked(expert["number"], tensor):
            for name, part in _layer_parts(key, f"mlp.{expert['rest']}", each, model):
                yield name.replace("mlp.", f"mlp.experts.{number}.", 1), part
    elif rest == "mlp.router.expert_bias":
        yield "mlp.gate.e_score_correction_bias", tensor
    elif rest == "mlp.shared_experts.gate_weight":
        yield "mlp.shared_expert_gate.weight", tensor
    else:
        # A norm that is fused with the next linear layer is called layer_norm_weight.
        name, _unused, kind = rest.replace(".layer_norm_", ".layer_norm.").rpartition(".")
        if name not in _LAYER_NAMES or kind not in ("weight", "bias"):
            raise _unknown(key)
        names = _LAYER_NAMES[name]
        parts = _heads(tensor, model) if len(names) == 3 else tensor.chunk(len(names))
        for target, part in zip(names, parts, strict=True):
            if model.get("model_type") == "qwen2_moe":
                target = target.replace("shared_experts", "shared_expert")
            yield f"{target}.{kind}", part


def _heads(tensor: Any, model: dict[str, Any]) -> list[Any]:
    """Return the queries, keys, and values of all groups of heads. Within a group, the query heads come first, then
    one key, then one value."""
    groups = model.get("num_key_value_heads") or model["num_attention_heads"]
    queries = model["num_attention_heads"] // groups
    grouped = tensor.reshape(groups, queries + 2, -1, *tensor.shape[1:])
    parts = grouped[:, :queries], grouped[:, queries], grouped[:, queries + 1]
    return [each.reshape(-1, *tensor.shape[1:]) for each in parts]


def _unknown(key: str) -> SourceError:
    return SourceError(
        subject=_("Megatron's tensor {key}").format(key=key),
        expected=_("a name that verl's merger converts"),
        found=_("a name that the merger does not know"),
        fix=_("save this model with actor.megatron.use_mbridge=True, which writes Hugging Face's format directly"),
    )
