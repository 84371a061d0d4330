"""The layout of a rollout's ranks. In each replica, one rank holds the model and generates the responses for all of
the replica's ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Sizes(Protocol):
    """The settings in verl's `rollout` section that determine the layout."""

    def get(self, key: str, default: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a rank within its replica."""

    replica: int
    rank: int
    """The rank's number within the replica."""
    size: int
    """The number of ranks in a replica."""

    @property
    def leads(self) -> bool:
        """Whether this rank holds the replica's model."""
        return self.rank == 0


def place(config: Sizes, rank: int) -> Place:
    """Return a rank's position. A replica consists of consecutive ranks. The number of these ranks is the product of
    the tensor-, data-, and pipeline-parallel sizes."""
    size = 1
    for key in ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size"):
        size *= config.get(key, 1) or 1
    return Place(rank // size, rank % size, size)


def share(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Broadcast a tensor from a replica's first rank to its other ranks. `mesh` is verl's device mesh: (dp, infer_tp,
    infer_pp)."""
    tensor = tensor.contiguous()
    for name in ("infer_pp", "infer_tp"):
        if name in (mesh.mesh_dim_names or ()) and mesh[name].size() > 1:
            group = mesh.get_group(name)
            torch.distributed.broadcast(tensor, torch.distributed.get_global_rank(group, 0), group)
    return tensor
