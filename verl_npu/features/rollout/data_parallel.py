"""Data-parallel engines at 796871d7: vLLM engines that share a model's experts and step together.

Upstream's rollout starts one engine for each group of tensor-parallel ranks. vLLM's variables tell an engine its
data-parallel rank, the number of engines, and the rendezvous address. Source: vLLM 0.10, `vllm/config/parallel.py` and
`vllm/v1/engine/llm_engine.py`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from ...registry.source.tree import SourceTree
from ..configuration import Section

__all__ = ["SETTINGS", "Place", "data_parallel_size", "join", "sharing_obstacle", "variables"]

SETTINGS = ("data_parallel_size", "dp_model_parallel_size")
"""verl's own name from v0.6.1 on, and the name in the earlier plugin for this revision."""
_TENSOR = "tensor_model_parallel_size"
_SIZE = "VLLM_DP_SIZE"
_ENGINE = "vllm.v1.engine.llm_engine"
_JOINT_STEPS = "should_execute_dummy_batch"
"""A name in vLLM's engine if several engines, each in its own process, can step together."""


def data_parallel_size(engine: Section) -> int:
    """Return the number of engines that share a model; 1 by default."""
    return max((size for size in map(engine.get, SETTINGS) if isinstance(size, int)), default=1)


@dataclass(frozen=True, slots=True)
class Place:
    """A rank among the engines that share a model: `data` engines of `tensor` consecutive ranks each."""

    rank: int
    tensor: int
    data: int

    @property
    def engine(self) -> int:
        """The index of the rank's engine."""
        return self.rank // self.tensor % self.data

    @property
    def first(self) -> int:
        """The rank that holds the same part in the first engine, and so is the first of this rank's group."""
        return self.rank - self.engine * self.tensor


def variables(place: Place, addresses: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Return vLLM's variables for a place. `addresses` are the host and a free port of each rank."""
    host, port = addresses[place.first]
    return {
        _SIZE: str(place.data),
        "VLLM_DP_RANK": str(place.engine),
        "VLLM_DP_MASTER_IP": host,
        "VLLM_DP_MASTER_PORT": str(port),
    }


def join(engine: Section) -> None:
    """Make the next engine of this process share its model with other engines, if the configuration asks for it.

    All ranks call this function together.
    """
    data = data_parallel_size(engine)
    if data > 1:
        from torch import distributed

        place = Place(distributed.get_rank(), int(engine.get(_TENSOR, 1)), data)
        os.environ.update(variables(place, _exchange(distributed.get_world_size())))


def _exchange(world: int) -> list[tuple[str, int]]:
    """Return each rank's host and a free port there."""
    import ray
    from torch import distributed

    # The port stays bound until all ranks have one, so that two ranks of a host get different ports.
    with socket.socket() as bound:
        bound.bind(("", 0))
        found: list[tuple[str, int]] = [("", 0)] * world
        distributed.all_gather_object(found, (ray.util.get_node_ip_address(), bound.getsockname()[1]))
    return found


def sharing_obstacle(engine: Section, tree: SourceTree) -> str:
    """Return the reason why the engines cannot share a model; empty if they can."""
    if engine.get("mode") == "async":
        return "rollout.mode=async, whose engines at this revision start one by one"
    known = tree.read(_ENGINE) is not None
    if "vllm" in tree and not (known and _JOINT_STEPS in tree.used_names(_ENGINE)):
        return "a vLLM whose engines step alone"
    return ""
