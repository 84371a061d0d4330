"""Which part of a weight a rank of a parallel layer holds: reckoned from the layer's sizes, not asked of its loader.

Source: vLLM, `model_executor/layers/linear.py` and `vocab_parallel_embedding.py`, 0.9.1 to 0.23.0. Layers are known by
the names of their classes, so that neither vLLM nor vllm-ascend is imported; vllm-ascend's derive from vLLM's.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Section", "Share", "kinds_of", "rank_of", "sections_of"]


@dataclass(frozen=True, slots=True)
class Share:
    """One of the equal parts into which the ranks divide a weight along a dimension; the last ones may be shorter."""

    dim: int
    size: int
    index: int

    def of(self, weight: torch.Tensor) -> torch.Tensor:
        """Return this part of a weight."""
        return self._part(weight, self.index)

    def others(self, weight: torch.Tensor) -> dict[int, torch.Tensor]:
        """Return the parts that belong to other ranks, by their indices."""
        count = -(-weight.shape[self.dim] // self.size)
        return {index: self._part(weight, index) for index in range(count) if index != self.index}

    def _part(self, weight: torch.Tensor, index: int) -> torch.Tensor:
        length = weight.shape[self.dim]
        begin = min(index * self.size, length)
        return weight.narrow(self.dim, begin, min(self.size, length - begin))


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of a weight that belong together, as the queries in a fused projection."""

    rows: int
    """Rows in the whole weight, before it is divided."""
    share: Share | None
    """The part that this rank holds; None if it holds all."""
    padded: bool = False
    """Whether the engine holds further rows behind it, which nothing is sent for."""


def kinds_of(thing: object) -> set[str]:
    """Return the names of a thing's classes, with those that they derive from."""
    return {kind.__name__ for kind in type(thing).__mro__}


def sections_of(layer: Any, leaf: str) -> tuple[Section, ...] | None:
    """Return the sections of a layer's `weight` or `bias`, in their order, or None if the layer is not a parallel one.

    Replicated layers with more than one output have sections that are not divided.
    """
    kinds = kinds_of(layer)
    if "VocabParallelEmbedding" in kinds:
        return (_vocabulary(layer),)
    if "QKVParallelLinear" in kinds:
        return _projections(layer)
    if "RowParallelLinear" in kinds:
        share = Share(1, layer.input_size_per_partition, rank_of(layer)) if leaf == "weight" else None
        return (Section(layer.output_size, share),)
    if "ColumnParallelLinear" in kinds:
        outputs = getattr(layer, "output_sizes", None) or [layer.output_size]
        return tuple(Section(size, Share(0, size // layer.tp_size, rank_of(layer))) for size in outputs)
    if "ReplicatedLinear" in kinds and hasattr(layer, "output_sizes"):
        return tuple(Section(size, None) for size in layer.output_sizes)
    return None


def _vocabulary(layer: Any) -> Section:
    indices = layer.shard_indices
    begin, end = indices.padded_org_vocab_start_index, indices.padded_org_vocab_end_index
    return Section(layer.org_vocab_size, Share(0, end - begin, begin // (end - begin)), padded=True)


def _projections(layer: Any) -> tuple[Section, ...]:
    rank = rank_of(layer)
    queries, keys, size = layer.num_heads, layer.num_kv_heads, layer.head_size
    values = getattr(layer, "v_head_size", size)
    # With fewer heads for keys than ranks, some ranks hold the same one.
    key_rank = rank // layer.num_kv_head_replicas
    return (
        Section(layer.total_num_heads * size, Share(0, queries * size, rank)),
        Section(layer.total_num_kv_heads * size, Share(0, keys * size, key_rank)),
        Section(layer.total_num_kv_heads * values, Share(0, keys * values, key_rank)),
    )


def rank_of(layer: Any) -> int:
    """Return the rank of this process among those that divide a layer."""
    rank = getattr(layer, "tp_rank", None)
    if rank is None:
        # Before 0.11 vLLM's linear layers ask for it in their loaders.
        rank = sys.modules["vllm.distributed"].get_tensor_model_parallel_rank()
    return int(rank)
