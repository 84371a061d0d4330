"""FSDP's shards, read without upstream's merger, so that its result can be judged by them."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from verl_npu.ascend.variables import VIRTUAL_NPUS
from verl_npu.errors import CheckpointError
from verl_npu.language import gettext as _

from .layout import Layout
from .naming import of_adapters
from .npu_names import allow_npu_names

_REFUSED = re.compile(r"(?:Unsupported global: GLOBAL|Unsupported class|unsupported GLOBAL) (\S+)")
"""What torch.load names that it would have to run."""


_ADVICE = re.compile(r"weights_only|unsafe|arbitrary code", re.IGNORECASE)


def whole_tensors(layout: Layout) -> Mapping[str, Callable[[], Any]]:
    """Return each tensor's name in Hugging Face's format, and what puts it together.

    Raises:
        CheckpointError: a shard holds something else than tensors, or other tensors than the rest.
    """
    loaded = [_load(path) for path in layout.shards]
    names = list(loaded[0])
    for path, shard in zip(layout.shards[1:], loaded[1:], strict=True):
        odd = sorted(set(names) ^ set(shard))
        if odd:
            raise CheckpointError(
                subject=str(path),
                expected=_("the tensors that {shards} has").format(shards=layout.shards[0].name),
                found=_("{count} that are in one of them alone, {odd} the first").format(count=len(odd), odd=odd[0]),
                fix=_("take the shards of one save"),
            )
    return {of_adapters(name): partial(_whole, name, loaded) for name in names}


def _whole(name: str, loaded: list[dict[str, Any]]) -> Any:
    return assemble(name, [shard[name] for shard in loaded])


def _load(path: Path) -> dict[str, Any]:
    import torch

    # It warns that there are no process groups for the mesh, which nobody asks for here.
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    # It registers what a DTensor is made of with torch.load.
    import torch.distributed.tensor

    allow_npu_names()
    try:
        # Nothing of a shard is executed, and it stays on disk until a tensor of it is read.
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(loaded, dict):
        raise CheckpointError(
            subject=str(path),
            expected=_("a table of tensors"),
            found=type(loaded).__name__,
            fix=_("copy the shard again"),
        )
    return {str(name): tensor for name, tensor in loaded.items()}


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    refused = _REFUSED.search(str(error))
    if refused is None:
        # torch's own text goes on to say how to switch the protection off.
        first = (str(error).strip().splitlines() or [repr(error)])[0]
        found, fix = first, _("merge it where it was saved, with the torch that saved it")
        if _ADVICE.search(first):
            found, fix = _("a pickle that torch refuses"), _("take the shards that FSDP saved")
    elif refused[1].startswith("torch_npu."):
        # torch_npu 2.7.1 saves with torch 2.7 each tensor with its format, and itself has what reads that.
        found = _(
            "tensors that torch_npu saved with their format ({refused}), and no torch_npu in this process"
        ).format(refused=refused[1])
        fix = _("merge it where torch_npu is; if virtual NPUs saved it, with {virtual_npus}=1 in front").format(
            virtual_npus=VIRTUAL_NPUS
        )
    else:
        found, fix = (
            _("{refused}, which would be run as it is loaded").format(refused=refused[1]),
            _("take the shards that FSDP saved"),
        )
    return CheckpointError(
        subject=str(path), expected=_("tensors and DTensors, as FSDP saves them"), found=found, fix=fix
    )


def assemble(name: str, parts: Sequence[Any]) -> Any:
    """Return the whole of a tensor, of which `parts` has what each rank saved, in the order of the ranks.

    A DTensor is put together as its own placements and its mesh say. Plain tensors are FSDP's of a single rank, or the
    same on every rank.

    Raises:
        CheckpointError: the parts do not fit together, or a replica differs from another one.
    """
    import torch
    from torch.distributed.tensor import DTensor

    first = parts[0]
    if not isinstance(first, DTensor):
        if any(not torch.equal(first, part) for part in parts[1:]):
            raise _bad_parts(
                name, _("a plain tensor that is the same on every rank"), _("values that differ between ranks")
            )
        return first
    specs = {(each.placements, each.shape, each.device_mesh.mesh.shape) for each in parts}
    if len(specs) > 1:
        raise _bad_parts(
            name,
            _("the same placements and shape on every rank"),
            _("{count} different ones").format(count=len(specs)),
        )
    mesh = first.device_mesh.mesh
    if mesh.numel() != len(parts):
        raise _bad_parts(
            name,
            _("a mesh of the {count} ranks that saved it").format(count=len(parts)),
            _("a mesh of {numel}").format(numel=mesh.numel()),
        )
    local = [part.to_local() for part in parts]
    whole = _along(name, local, mesh, first.placements)
    if whole.shape != first.shape:
        raise _bad_parts(
            name,
            _("the shape {shape}").format(shape=tuple(first.shape)),
            _("parts that make {shape}").format(shape=tuple(whole.shape)),
        )
    return whole


def _along(name: str, local: Sequence[Any], mesh: Any, placements: Sequence[Any]) -> Any:
    """Return the tensor of the ranks in `mesh`, whose first dimension the first placement is for."""
    import torch

    if not placements:
        return local[int(mesh)]
    placement = placements[0]
    below = [_along(name, local, each, placements[1:]) for each in mesh]
    if placement.is_replicate():
        differing = [index for index, each in enumerate(below) if not torch.equal(below[0], each)]
        if differing:
            ranks = _("ranks {tolist} and {flatten_tolist}").format(
                tolist=mesh[0].flatten().tolist(), flatten_tolist=mesh[differing[0]].flatten().tolist()
            )
            raise _bad_parts(
                name, _("replicas that are the same"), _("values that differ between {ranks}").format(ranks=ranks)
            )
        return below[0]
    # _StridedShard, of FSDP with tensor parallelism, is a shard in another order.
    if type(placement).__name__ != "Shard":
        raise _bad_parts(name, _("Replicate and Shard placements"), str(placement))
    return torch.cat(below, dim=placement.dim)


def _bad_parts(name: str, expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        subject=_("the tensor {name}").format(name=name),
        expected=expected,
        found=found,
        fix=_("the shards are not of one save of one job: take those of another step"),
    )
