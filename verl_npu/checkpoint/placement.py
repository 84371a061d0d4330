"""A whole tensor from the parts that the ranks of a mesh hold of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import CheckpointError

__all__ = ["assemble"]


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
            raise _refusal(name, "a plain tensor that is the same on every rank", "values that differ between ranks")
        return first
    specs = {(each.placements, each.shape, each.device_mesh.mesh.shape) for each in parts}
    if len(specs) > 1:
        raise _refusal(name, "the same placements and shape on every rank", f"{len(specs)} different ones")
    mesh = first.device_mesh.mesh
    if mesh.numel() != len(parts):
        raise _refusal(name, f"a mesh of the {len(parts)} ranks that saved it", f"a mesh of {mesh.numel()}")
    local = [part.to_local() for part in parts]
    whole = _along(name, local, mesh, first.placements)
    if whole.shape != first.shape:
        raise _refusal(name, f"the shape {tuple(first.shape)}", f"parts that make {tuple(whole.shape)}")
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
            ranks = f"ranks {mesh[0].flatten().tolist()} and {mesh[differing[0]].flatten().tolist()}"
            raise _refusal(name, "replicas that are the same", f"values that differ between {ranks}")
        return below[0]
    # _StridedShard, of FSDP with tensor parallelism, is a shard in another order.
    if type(placement).__name__ != "Shard":
        raise _refusal(name, "Replicate and Shard placements", str(placement))
    return torch.cat(below, dim=placement.dim)


def _refusal(name: str, expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        subject=f"the tensor {name}",
        expected=expected,
        found=found,
        fix="the shards are not of one save of one job: take those of another step",
    )
