"""Assembles the tensors of an FSDP or FSDP2 checkpoint without upstream's merger."""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from verl_npu.errors import SourceError
from verl_npu.language import gettext as _

CONFIG = "fsdp_config.json"
_REFUSED = re.compile(r"GLOBAL (\S+)|[Uu]nsupported class (\S+)")
"""Finds, in an error message of torch.load, the class that torch.load refused to load. The message's first line is not
shown, because it explains how to load the class anyway."""
_WRAPPED = "base_model.model."


def tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield each tensor, assembled from its shards, with its name in Hugging Face's format.

    Raises:
        SourceError: a shard cannot be read, or does not fit the other shards.
    """
    try:
        world = int(json.loads((folder / CONFIG).read_text(encoding="utf-8"))["world_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _refusal(folder / CONFIG, repr(error)) from error
    shards = [_load(folder / f"model_world_size_{world}_rank_{rank}.pt") for rank in range(world)]
    for name in sorted({name for shard in shards for name in shard}):
        parts = [shard[name] for shard in shards if name in shard]
        whole = _whole(parts) if len(parts) == world else None
        if whole is None:
            raise _refusal(folder, _("parts of {name} that do not fit together").format(name=name))
        yield _model_name(name), whole


def _model_name(name: str) -> str:
    """Return a tensor's name in the merged model, where the base model and its LoRA adapter are separate files."""
    if "lora_" in name:
        return name.replace(".default.weight", ".weight")
    return name.removeprefix(_WRAPPED).replace(".base_layer.weight", ".weight").replace(".base_layer.bias", ".bias")


def _load(path: Path) -> dict[str, Any]:
    import torch

    # Silence its warning that the mesh has no process groups, which nothing needs here.
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    # This import registers DTensor's classes with torch.load.
    import torch.distributed.tensor

    # No code of a shard is executed, and the shard stays on disk until one of its tensors is read.
    read = partial(torch.load, path, map_location="cpu", weights_only=True, mmap=True)
    try:
        try:
            return dict(read())
        except RuntimeError as error:
            if "device string: npu" not in str(error):
                raise
            # The shard names the NPU that saved it. Registering the name starts no device.
            torch.utils.rename_privateuse1_backend("npu")
            return dict(read())
    except (OSError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError) as error:
        refused = _REFUSED.search(str(error))
        found = next(filter(None, refused.groups())) if refused else str(error).strip().partition("\n")[0]
        raise _refusal(path, found) from error


def _whole(parts: Sequence[Any]) -> Any:
    """Assemble a tensor from the parts on all ranks, using the tensor's own device mesh and placements. Return the
    tensor, or None if the parts do not fit together."""
    import torch
    from torch.distributed.tensor import DTensor

    first, replicas = parts[0], list(parts)
    if isinstance(first, DTensor):
        mesh, placement = first.device_mesh.mesh, first.placements[-1]
        if mesh.numel() != len(parts):
            return None
        replicas = [part.to_local() for part in parts]
        if placement.is_shard():
            # Like upstream's merger: a mesh of one dimension, or of two, where the first is for replicas.
            rows = mesh.reshape(-1, mesh.shape[-1]).tolist()
            replicas = [torch.cat([replicas[rank] for rank in row], dim=placement.dim) for row in rows]
    fit = all(torch.equal(bits(replicas[0]), bits(each)) for each in replicas[1:]) and replicas[0].shape == first.shape
    return replicas[0] if fit else None


def bits(tensor: Any) -> Any:
    """Return the bytes of each value of a tensor. Compared as bytes, a NaN equals itself, and 0 differs from -0."""
    import torch

    return tensor.contiguous().flatten().view(torch.uint8).reshape(tensor.numel(), tensor.element_size())


def _refusal(path: Path, found: str) -> SourceError:
    return SourceError(
        subject=str(path),
        expected=_("the shards of one FSDP checkpoint, in a format that can be loaded without executing code"),
        found=found,
        fix=_(
            "copy the shards again from the machine that saved them, or run the comparison on that machine, where "
            "torch_npu is installed (if virtual NPUs saved the shards, set VIRTUAL_ASCEND=1)"
        ),
    )
