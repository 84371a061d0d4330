"""Lengths and positions of the sequences in a batch. They are fetched from the NPU once, not in each layer."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, SupportsInt, TypeVar, cast

from . import UTILS
from .padding import kept_indices

if TYPE_CHECKING:
    from torch import Tensor

Result = TypeVar("Result")

# A forward pass has one or two masks; a pipeline of micro-batches has a few more.
_MAX_RESULTS = 16


class Once(Generic[Result]):
    """A function of one tensor that caches its results.

    Two tensors count as the same if they have the same memory, shape, and version. A detached alias, which gradient
    checkpointing creates, therefore counts as the same tensor. The cache drops a result as soon as its tensor is
    freed: another tensor may reuse the memory, and the result itself may take memory on the device.
    """

    __slots__ = ("_compute", "_results")

    def __init__(self, compute: Callable[[Tensor], Result]) -> None:
        self._compute = compute
        self._results: dict[tuple[object, ...], tuple[weakref.ref[Tensor], Result]] = {}

    def __call__(self, tensor: Tensor) -> Result:
        """Return the result for `tensor`. It is computed only if `tensor` is new or has changed."""
        if tensor.is_inference():
            return self._compute(tensor)  # inference tensors have no version, so we cannot see a change
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor._version)
        known = self._results.get(key)
        if known is not None and known[0]() is not None:
            return known[1]
        result = self._compute(tensor)
        results = self._results

        def drop(gone: weakref.ref[Tensor]) -> None:
            known = results.get(key)
            if known is not None and known[0] is gone:  # not a newer tensor at the same address
                del results[key]

        results[key] = (weakref.ref(tensor, drop), result)
        while len(results) > _MAX_RESULTS:
            results.pop(next(iter(results)), None)
        return result


@dataclass(frozen=True, slots=True)
class Packing:
    """The sequences in a packed batch of one row, computed from the position ids of the batch."""

    increasing: bool
    """Whether no position is smaller than the one before it."""
    consecutive: bool
    """Whether each position is the one before it plus 1. Then the row is a single sequence."""
    cu_seqlens: Tensor
    """The boundaries of the sequences, as an int32 tensor of shape [sequences + 1] on the host."""
    longest: int
    """The length of the longest sequence."""


def _packing(position_ids: Tensor) -> Packing:
    import torch

    positions = position_ids.cpu()
    steps = positions.diff(dim=-1)
    starts = (positions.flatten() == positions.min()).nonzero().flatten().to(torch.int32)
    cu_seqlens = torch.cat((starts, torch.tensor([positions.numel()], dtype=torch.int32)))
    longest = int(cu_seqlens.diff().max()) if cu_seqlens.numel() > 1 else positions.numel()
    return Packing(bool((steps >= 0).all()), bool((steps == 1).all()), cu_seqlens, longest)


def _unpadding(mask: Tensor) -> tuple[Tensor, Tensor, int]:
    import torch

    lengths = mask.sum(dim=-1, dtype=torch.int32).cpu()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return kept_indices(mask, int(cu_seqlens[-1])), cu_seqlens, int(lengths.max())


packing = Once(_packing)
"""Computes the sequences of a packed batch: position_ids [1, tokens] -> Packing."""
unpadding = Once(_unpadding)
"""Computes the tokens that a mask keeps: mask [batch, seqlen] -> (indices [total] on the mask's device, cu_seqlens
int32 [batch + 1] on the host, longest length)."""
host_copy: Once[Tensor] = Once(lambda tensor: tensor.cpu())
"""Copies a tensor to the host."""


def given_lengths(
    attention_mask: Tensor | None, position_ids: Tensor | None, key_states: Tensor, kwargs: dict[str, object]
) -> tuple[Tensor | None, Callable[[], int]]:
    """Return the position ids to pass to transformers, and a function that returns the length of the longest sequence.

    For packed sequences, add their lengths to `kwargs`.
    """
    batch, width = key_states.shape[:2]
    if attention_mask is not None:
        # transformers uses only the mask here, but would still fetch the positions of a batch of one row.
        mask = attention_mask
        return None, lambda: unpadding(mask)[2] if mask.dim() == 2 else width
    given = kwargs.get("max_length_k")
    if given is not None:
        return position_ids, lambda: int(cast(SupportsInt, given))
    if position_ids is None or position_ids.dim() != 2 or position_ids.shape != (batch, width):
        return position_ids, lambda: width
    if batch > 1:
        return (None if _packs_single_rows_only() else position_ids), lambda: width
    packed = packing(position_ids)
    if packed.consecutive if _packs_single_rows_only() else packed.increasing:
        return None, lambda: width
    kwargs.update(
        cu_seq_lens_q=packed.cu_seqlens,
        cu_seq_lens_k=packed.cu_seqlens,
        max_length_q=packed.longest,
        max_length_k=packed.longest,
    )
    return position_ids, lambda: packed.longest


def _packs_single_rows_only() -> bool:
    # From transformers 4.55 on, a batch of one row counts as packed if its positions are not consecutive. Before that,
    # any batch counts as packed if a position is smaller than the previous one.
    return hasattr(sys.modules[UTILS], "_is_packed_sequence")
