"""The tensors of a checkpoint of FSDP's or FSDP2's, put together without upstream's merger."""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from verl_npu.errors import CheckpointError
from verl_npu.language import gettext as _

CONFIG = "fsdp_config.json"
_REFUSED = re.compile(r"GLOBAL (\S+)|[Uu]nsupported class (\S+)")
"""What torch.load names that it would have to run; its first line says how to have it run all the same."""
_WRAPPED = "base_model.model."


def tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield each tensor by its name in Hugging Face's format.

    Raises:
        CheckpointError: a shard cannot be read, or does not fit the others.
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
            raise _refusal(folder, _("parts of {name} that do not fit each other").format(name=name))
        yield _in_the_model(name), whole


def _in_the_model(name: str) -> str:
    """Return what a tensor is called once a base model and its LoRA adapter are two files."""
    if "lora_" in name:
        return name.replace(".default.weight", ".weight")
    return name.removeprefix(_WRAPPED).replace(".base_layer.weight", ".weight").replace(".base_layer.bias", ".bias")


def _load(path: Path) -> dict[str, Any]:
    import torch

    # It warns that there are no process groups for the mesh, which nobody asks for here.
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    # It registers what a DTensor is made of with torch.load.
    import torch.distributed.tensor

    # Nothing of a shard is executed, and it stays on disk until a tensor of it is read.
    read = partial(torch.load, path, map_location="cpu", weights_only=True, mmap=True)
    try:
        try:
            return dict(read())
        except RuntimeError as error:
            if "device string: npu" not in str(error):
                raise
            # The shard names the NPU that saved it. The name alone brings no device up.
            torch.utils.rename_privateuse1_backend("npu")
            return dict(read())
    except (OSError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError) as error:
        refused = _REFUSED.search(str(error))
        found = next(filter(None, refused.groups())) if refused else str(error).strip().partition("\n")[0]
        raise _refusal(path, found) from error


def _whole(parts: Sequence[Any]) -> Any:
    """Return the whole of a tensor, as its own mesh and placements say; None if the ranks' parts do not fit."""
    import torch
    from torch.distributed.tensor import DTensor

    first, replicas = parts[0], list(parts)
    if isinstance(first, DTensor):
        mesh, placement = first.device_mesh.mesh, first.placements[-1]
        if mesh.numel() != len(parts):
            return None
        replicas = [part.to_local() for part in parts]
        if placement.is_shard():
            # Upstream merges a mesh of one dimension, or of two, whose first one is of replicas.
            rows = mesh.reshape(-1, mesh.shape[-1]).tolist()
            replicas = [torch.cat([replicas[rank] for rank in row], dim=placement.dim) for row in rows]
    fit = all(torch.equal(bits(replicas[0]), bits(each)) for each in replicas[1:]) and replicas[0].shape == first.shape
    return replicas[0] if fit else None


def bits(tensor: Any) -> Any:
    """Return the bytes of each of a tensor's values, in which a NaN is equal to itself and 0 is not -0."""
    import torch

    return tensor.contiguous().flatten().view(torch.uint8).reshape(tensor.numel(), tensor.element_size())


def _refusal(path: Path, found: str) -> CheckpointError:
    return CheckpointError(
        subject=str(path),
        expected=_("shards of one save of FSDP's, with nothing in them that is run as it is loaded"),
        found=found,
        fix=_(
            "copy them again from where they were saved, or compare there, with the torch_npu that saved them "
            "(VIRTUAL_ASCEND=1 in front, if virtual NPUs did)"
        ),
    )
