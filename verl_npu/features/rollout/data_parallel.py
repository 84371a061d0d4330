"""Data parallel engines at 796871d7: vLLM engines that share a model's experts and take their steps together.

Upstream's rollout starts one engine for each group of tensor parallel ranks. An engine learns from vLLM's variables
that it is one of several: which one, of how many, and where they meet. Source: vLLM 0.10, `vllm/config/parallel.py`
and `vllm/v1/engine/llm_engine.py`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from ...registry.source.tree import SourceTree
from ..configuration import Section

__all__ = ["SETTINGS", "Place", "data_parallel_size", "join", "never_together", "variables"]

SETTINGS = ("data_parallel_size", "dp_model_parallel_size")
"""verl's own name from v0.6.1 on, and that of the earlier plugin for this revision."""
_TENSOR = "tensor_model_parallel_size"
_SIZE = "VLLM_DP_SIZE"
_ENGINE = "vllm.v1.engine.llm_engine"
_STEPS_TOGETHER = "should_execute_dummy_batch"
"""What vLLM's engine has where several of one process each take their steps together."""


def data_parallel_size(engine: Section) -> int:
    """Return how many engines share a model; 1 if nobody asks for more."""
    return max((size for size in map(engine.get, SETTINGS) if isinstance(size, int)), default=1)


@dataclass(frozen=True, slots=True)
class Place:
    """A rank among the engines that share a model: `data` engines of `tensor` ranks, which follow each other."""

    rank: int
    tensor: int
    data: int

    @property
    def engine(self) -> int:
        """Which of the engines the rank belongs to."""
        return self.rank // self.tensor % self.data

    @property
    def first(self) -> int:
        """The rank that holds the same part of the first engine: with it and the others it forms a group."""
        return self.rank - self.engine * self.tensor


def variables(place: Place, addresses: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Return what vLLM is told at a place; `addresses` are each rank's host and free port."""
    host, port = addresses[place.first]
    return {
        _SIZE: str(place.data),
        "VLLM_DP_RANK": str(place.engine),
        "VLLM_DP_MASTER_IP": host,
        "VLLM_DP_MASTER_PORT": str(port),
    }


def join(engine: Section) -> None:
    """Have the engine that this process makes next share its model with others, if the configuration asks for it.

    All ranks call this together.
    """
    data = data_parallel_size(engine)
    if data > 1:
        from torch import distributed

        place = Place(distributed.get_rank(), int(engine.get(_TENSOR, 1)), data)
        os.environ.update(variables(place, _exchange(distributed.get_world_size())))


def _exchange(world: int) -> list[tuple[str, int]]:
    """Return the host of each rank, with a port that is free there."""
    import ray
    from torch import distributed

    # Bound until all have theirs, so that no two ranks of a host get the same.
    with socket.socket() as bound:
        bound.bind(("", 0))
        found: list[tuple[str, int]] = [("", 0)] * world
        distributed.all_gather_object(found, (ray.util.get_node_ip_address(), bound.getsockname()[1]))
    return found


def never_together(engine: Section, tree: SourceTree) -> str:
    """Return why the engines that are asked for would not share a model; empty if nothing speaks against it."""
    if engine.get("mode") == "async":
        return "rollout.mode=async, whose engines at this revision are started one by one"
    known = tree.read(_ENGINE) is not None
    if "vllm" in tree and not (known and _STEPS_TOGETHER in tree.used_names(_ENGINE)):
        return "a vLLM whose engines take each step alone"
    return ""
