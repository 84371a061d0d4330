"""Megatron's distributed checkpoint, read without upstream's merger, so that its result can be judged by it.

The metadata name classes of Megatron's, so it has to be installed; none of it is called.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .layout import Layout
from .megatron_names import Shape, parts_of

__all__ = ["has_accelerator", "whole_tensors"]

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
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    folder = layout.shards[0]
    shape = _shape(layout.huggingface / "config.json")
    entries = FileSystemReader(folder).read_metadata().state_dict_metadata
    if isinstance(head := entries.get(_HEAD), TensorStorageMetadata) and head.size[0] == 1:
        # Seen at v0.6.1, with --is-value-model too; from 796871d7 to 1dda039b it makes a language model (value=False).
        raise CheckpointError(
            subject=str(folder),
            expected="a language model",
            found="a value model: verl's merger would leave out its bias, and fill its output layer with zeros",
            fix=f"train on from it as it is, or read {_HEAD} and output_layer.bias by torch.distributed.checkpoint",
        )
    found: dict[str, Callable[[], Any]] = {}
    for key, entry in entries.items():
        if not key.startswith(_MODEL) or not isinstance(entry, TensorStorageMetadata) or "_extra_state" in key:
            continue
        read = partial(_read, folder, key, tuple(entry.size), entry.properties.dtype)
        for name, part in parts_of(key, tuple(entry.size), shape):
            if name in found:
                raise _refusal(folder, f"one tensor for {name}", f"{key} as another one")
            found[name] = partial(_part, read, part)
    if not found:
        raise CheckpointError(
            subject=str(folder),
            expected="the tensors of a model",
            found="none",
            fix=f"use {layout.huggingface}, where the job saved the whole model"
            if layout.is_whole
            else "have the job save it: actor.checkpoint.save_contents with model in it",
        )
    return found


def _part(read: Callable[[], Any], part: Callable[[Any], Any]) -> Any:
    return part(read())


def _read(folder: Path, key: str, size: tuple[int, ...], dtype: Any) -> Any:
    import torch
    from torch.distributed.checkpoint import FileSystemReader, load

    state = {key: torch.empty(size, dtype=dtype)}
    with warnings.catch_warnings():
        # That there are no process groups, as if that were not what no_dist says.
        warnings.simplefilter("ignore", UserWarning)
        load(state, storage_reader=FileSystemReader(folder), no_dist=True)
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
            expected="the configuration of a language model",
            found=f"one without {error}",
            fix="copy it again from where rank 0 saved the checkpoint",
        ) from error


def _refusal(folder: Path, expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        subject=str(folder), expected=expected, found=found, fix="merge another checkpoint; nothing was written"
    )
