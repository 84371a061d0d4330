"""The operators by which the wheel routes tokens to experts and back, where they are not those of its documents."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import operators
from .gradient import vjp

__all__ = ["permute_grad", "permute_grad_v2", "unpermute", "unpermute_grad", "unpermute_grad_v2"]


def permute_grad(
    tokens: torch.Tensor,
    grad_permuted_tokens: torch.Tensor,
    indices: torch.Tensor,
    sorted_indices: torch.Tensor,
    padded_mode: bool = False,
) -> object:
    """Add up the gradients of a token's copies, of which only the first may have been kept."""
    kept = grad_permuted_tokens.shape[0]
    return vjp(
        lambda x: operators.npu_moe_token_permute(x, indices, kept, padded_mode)[0], [tokens], [grad_permuted_tokens]
    )[0]


def permute_grad_v2(
    grad_permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    tokens_size_0: int,
    tokens_dtype: torch.dtype,
    num_topK: int,  # the wheel's own name
    padded_mode: bool = False,
) -> torch.Tensor:
    """Add up the gradients of a token's copies, which are found by their places."""
    rows, width = grad_permuted_tokens.shape
    places = sorted_indices.long()
    there = (places < rows).unsqueeze(1)
    copies = grad_permuted_tokens.float()[places.clamp_max(rows - 1)] * there
    return copies.view(tokens_size_0, num_topK, width).sum(1).to(tokens_dtype)


def unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> tuple[object, ...]:
    """Add up a token's copies; what is kept for the backward is the wheel's own."""
    with torch.no_grad():
        return (operators.npu_moe_token_unpermute(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape),)


def unpermute_grad(
    permuted_tokens: torch.Tensor,
    grad_unpermuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> tuple[object, ...]:
    """Differentiate `unpermute`."""

    def add_up(rows: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        return operators.npu_moe_token_unpermute(rows, sorted_indices, probs=weights)

    return tuple(vjp(add_up, [permuted_tokens, probs], [grad_unpermuted_tokens]))


def unpermute_grad_v2(
    grad_unpermuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    permuted_tokens_size_0: int,
    permuted_tokens_dtype: torch.dtype,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
    permuted_tokens: torch.Tensor | None = None,
) -> tuple[object, ...]:
    """Differentiate `unpermute`, whose rows are left out if no weights need them."""
    rows = permuted_tokens
    if rows is None or rows.numel() == 0:
        shape = (permuted_tokens_size_0, grad_unpermuted_tokens.shape[-1])
        rows = torch.zeros(shape, dtype=permuted_tokens_dtype)
    return unpermute_grad(rows, grad_unpermuted_tokens, sorted_indices, probs)
