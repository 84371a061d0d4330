"""Keys and values written into a paged cache, as ATB's operators do: op-plugin, op_plugin/ops/atb/."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["_npu_reshape_and_cache", "_npu_reshape_and_cache_siso"]


def _npu_reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> None:
    """Write each token's key and value into its slot of a paged cache; a negative slot is left out.

    Shapes: key and value [T,Nkv,D], caches [blocks, block size, Nkv, D], slot_indices int32 [T].

    Raises:
        RuntimeError: shapes or dtypes that do not go together, or a slot outside the cache.
    """
    name = "_npu_reshape_and_cache"
    _write(name, key, key_cache, slot_indices)
    _write(name, value, value_cache, slot_indices)


def _npu_reshape_and_cache_siso(key: Tensor, key_cache: Tensor, slot_indices: Tensor) -> None:
    """`_npu_reshape_and_cache` with one cache."""
    _write("_npu_reshape_and_cache_siso", key, key_cache, slot_indices)


def _write(name: str, tensor: Tensor, cache: Tensor, slots: Tensor) -> None:
    if slots.dtype != torch.int32:
        raise RuntimeError(f"{name}: slot_indices must be int32, but is {slots.dtype}")
    if tensor.dtype != cache.dtype:
        raise RuntimeError(f"{name}: the cache is {cache.dtype}, but what is written is {tensor.dtype}")
    if cache.dim() != 4 or tensor.shape[1:] != cache.shape[2:] or slots.numel() > tensor.shape[0]:
        raise RuntimeError(
            f"{name}: expected [tokens, heads, size], a cache [blocks, block size, heads, size] and a slot for each "
            f"token, but got {tuple(tensor.shape)}, {tuple(cache.shape)} and {tuple(slots.shape)}"
        )
    flat, places = cache.view(-1, *cache.shape[2:]), slots.flatten().long()
    kept = places >= 0
    if bool((places >= flat.shape[0]).any()):
        raise RuntimeError(f"{name}: slot {int(places.max())} is outside a cache of {flat.shape[0]} tokens")
    flat.index_put_((places[kept],), tensor[: slots.numel()][kept])
