"""Moving tokens to their experts and back: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_moe_token_permute.md
and torch_npu-npu_moe_token_unpermute.md."""

from __future__ import annotations

import torch
from torch import Tensor


def npu_moe_token_permute(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """Sort copies of the tokens by expert, stably; differentiable in tokens.

    Shapes: tokens [T,H], indices [T,K] or [T] (the experts of a token).

    Returns:
        (permuted [T*K,H], sorted_indices int32 [T*K]: where copy t*K+k went). A positive `num_out_tokens` keeps so
        many rows, a negative one drops so many.

    Raises:
        RuntimeError: wrong shapes or dtypes.
        NotImplementedError: padded_mode.
    """
    _refuse_padded("npu_moe_token_permute", padded_mode)
    if tokens.dim() != 2 or indices.dim() not in (1, 2) or indices.shape[0] != tokens.shape[0]:
        raise RuntimeError(
            "npu_moe_token_permute: expected tokens [T,H] and indices [T,K] or [T], but got "
            f"{tuple(tokens.shape)} and {tuple(indices.shape)}"
        )
    if indices.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"npu_moe_token_permute: indices must be int32 or int64, but are {indices.dtype}")
    copies = 1 if indices.dim() == 1 else indices.shape[1]
    order = torch.argsort(indices.reshape(-1), stable=True)
    places = torch.argsort(order, stable=True).to(torch.int32)
    kept = order.numel()
    if num_out_tokens:
        kept = min(num_out_tokens, kept) if num_out_tokens > 0 else max(kept + num_out_tokens, 0)
    return tokens.index_select(0, order[:kept] // copies), places


def npu_moe_token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> Tensor:
    """Add up a token's copies, weighted: `out[t] = sum_k probs[t,k] * permuted[sorted_indices[t*K+k]]`;
    differentiable.

    Shapes: permuted_tokens [M,H], sorted_indices [T*K], probs [T,K] -> [T,H]. Copies that were dropped count as zeros.

    Raises:
        RuntimeError: wrong shapes.
        NotImplementedError: padded_mode.
    """
    _refuse_padded("npu_moe_token_unpermute", padded_mode)
    copies = 1 if probs is None else probs.shape[1]
    if permuted_tokens.dim() != 2 or sorted_indices.dim() != 1 or sorted_indices.numel() % copies:
        raise RuntimeError(
            f"npu_moe_token_unpermute: expected permuted_tokens [M,H] and sorted_indices [T*{copies}], "
            f"but got {tuple(permuted_tokens.shape)} and {tuple(sorted_indices.shape)}"
        )
    places = sorted_indices.long()
    alive = places < permuted_tokens.shape[0]
    rows = permuted_tokens.index_select(0, places.masked_fill(~alive, 0))
    rows = rows.masked_fill(~alive.unsqueeze(-1), 0).view(-1, copies, permuted_tokens.shape[-1])
    if probs is not None:
        rows = rows * probs.unsqueeze(-1)
    return rows.sum(dim=1).to(permuted_tokens.dtype)


def _refuse_padded(name: str, padded_mode: bool) -> None:
    if padded_mode:
        raise NotImplementedError(f"{name}: padded_mode is not implemented by the virtual Ascend")
