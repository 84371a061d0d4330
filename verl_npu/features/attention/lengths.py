"""Lengths of sequences, known on the host: fetched from the device once, and not once for each layer."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Once", "Packing", "host_copy", "packing", "unpadding"]

# A forward has one or two masks; a pipeline of micro batches a few more.
_KEPT = 16


class Once:
    """Results for the tensors that they were computed from.

    A tensor is the same if its memory, shape and version are, so a detached alias of it (gradient checkpointing makes
    them) is the same as well; and only while the first one lives, for its memory may be used again afterwards.
    """

    __slots__ = ("_compute", "_results")

    def __init__(self, compute: Callable[[Tensor], Any]) -> None:
        self._compute = compute
        self._results: dict[tuple[Any, ...], tuple[weakref.ref[Any], Any]] = {}

    def __call__(self, tensor: Tensor) -> Any:
        """What was computed from `tensor`; computes it if that has not been done, or was for what it held before."""
        if tensor.is_inference():
            return self._compute(tensor)  # such tensors have no version: whether they changed is not known
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor._version)
        alive, result = self._results.get(key, (None, None))
        if alive is not None and alive() is not None:
            return result
        result = self._compute(tensor)
        self._results[key] = (weakref.ref(tensor), result)
        while len(self._results) > _KEPT:
            self._results.pop(next(iter(self._results)), None)
        return result


@dataclass(frozen=True, slots=True)
class Packing:
    """What position ids say of a batch of one row."""

    increasing: bool
    """No position is below the one before it."""
    consecutive: bool
    """Each position is the one before it plus 1: one sequence."""
    cu_seqlens: Tensor
    """int32 [sequences + 1], on the host."""
    longest: int


def _packing(position_ids: Tensor) -> Packing:
    import torch

    positions = position_ids.cpu()
    steps = positions.diff(dim=-1)
    starts = (positions.flatten() == 0).nonzero().flatten().to(torch.int32)
    cu_seqlens = torch.cat((starts, torch.tensor([positions.numel()], dtype=torch.int32)))
    longest = int(cu_seqlens.diff().max()) if cu_seqlens.numel() > 1 else positions.numel()
    return Packing(bool((steps >= 0).all()), bool((steps == 1).all()), cu_seqlens, longest)


def _unpadding(mask: Tensor) -> tuple[Tensor, Tensor, int]:
    import torch

    from .padding import kept_indices

    lengths = mask.sum(dim=-1, dtype=torch.int32).cpu()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return kept_indices(mask, int(cu_seqlens[-1])), cu_seqlens, int(lengths.max())


packing: Callable[[Tensor], Packing] = Once(_packing)
unpadding: Callable[[Tensor], tuple[Tensor, Tensor, int]] = Once(_unpadding)
host_copy: Callable[[Tensor], Tensor] = Once(lambda tensor: tensor.cpu())
