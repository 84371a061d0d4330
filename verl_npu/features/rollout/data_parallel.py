"""Data-parallel engines at 796871d7: several vLLM engines that share a model's experts and compute their steps
together.

Upstream's rollout starts one engine for each group of tensor-parallel ranks. Environment variables of vLLM tell each
engine its data-parallel rank, the number of engines, and the address that they use to connect. Source: vLLM 0.10,
`vllm/config/parallel.py` and `vllm/v1/engine/llm_engine.py`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from ...registry.source.tree import SourceTree
from ..configuration import Section

SETTINGS = ("data_parallel_size", "dp_model_parallel_size")
"""The setting's name in verl from v0.6.1 on, and its name in the earlier plugin for 796871d7."""
_TENSOR = "tensor_model_parallel_size"
SIZE = "VLLM_DP_SIZE"
"""vLLM's environment variable for the number of engines that share a model."""
_ENGINE = "vllm.v1.engine.llm_engine"
_JOINT_STEPS = "should_execute_dummy_batch"
"""A name in vLLM's engine. If vLLM has it, several engines in different processes can compute their steps together."""


def data_parallel_size(engine: Section) -> int:
    """Return the number of engines that share a model (default: 1)."""
    return max((size for size in map(engine.get, SETTINGS) if isinstance(size, int)), default=1)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a rank among the engines that share a model. There are `data` engines of `tensor` consecutive ranks
    each."""

    rank: int
    tensor: int
    data: int

    @property
    def engine(self) -> int:
        """The index of the rank's engine."""
        return self.rank // self.tensor % self.data

    @property
    def first(self) -> int:
        """The first rank of this rank's data-parallel group. It belongs to the first engine, and holds the same part
        of the model as this rank."""
        return self.rank - self.engine * self.tensor


def variables(place: Place, addresses: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Return vLLM's environment variables for a rank's place among the engines. `addresses` contains the host of each
    rank, and a free port on that host."""
    host, port = addresses[place.first]
    return {
        SIZE: str(place.data),
        "VLLM_DP_RANK": str(place.engine),
        "VLLM_DP_MASTER_IP": host,
        "VLLM_DP_MASTER_PORT": str(port),
    }


def join(engine: Section) -> None:
    """Make the next engine of this process share its model with other engines, if the configuration requests this.

    All ranks must call this function together.
    """
    data = data_parallel_size(engine)
    if data > 1:
        from torch import distributed

        place = Place(distributed.get_rank(), int(engine.get(_TENSOR, 1)), data)
        os.environ.update(variables(place, _exchange(distributed.get_world_size())))


def _exchange(world: int) -> list[tuple[str, int]]:
    """Return the host of each rank, and a free port on that host."""
    import ray
    from torch import distributed

    # The port stays bound until all ranks have one, so that two ranks of a host get different ports.
    with socket.socket() as bound:
        bound.bind(("", 0))
        found: list[tuple[str, int]] = [("", 0)] * world
        distributed.all_gather_object(found, (ray.util.get_node_ip_address(), bound.getsockname()[1]))
    return found


def sharing_obstacle(engine: Section, tree: SourceTree) -> str:
    """Return the reason why the engines cannot share a model, or an empty string if they can."""
    if engine.get("mode") == "async":
        return "rollout.mode=async, whose engines at this revision start one by one"
    known = tree.read(_ENGINE) is not None
    if "vllm" in tree and not (known and _JOINT_STEPS in tree.used_names(_ENGINE)):
        return "a vLLM whose engines step alone"
    return ""
