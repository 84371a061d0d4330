"""torch's scaled_dot_product_attention on NPUs, which is npu_fusion_attention where that can be: op-plugin,
op_plugin/ops/opapi/ScaledDotProductAttentionKernelNpuOpApi.cpp."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .fused import Result, flops_of, fused, is_fusible
from .masks import TEMPLATE

__all__ = ["register", "scaled_dot_product_attention"]

_HEADS, _WIDTH = 2048, 512  # the most that the fused operator takes
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_KEYS = ("PrivateUse1", "AutogradPrivateUse1")
_libraries: list[torch.library.Library] = []  # a library that is dropped takes its operators along


def register() -> None:
    """Have torch call this on NPUs, in place of its own composition. Once per process."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for key in _KEYS:
        library.impl("scaled_dot_product_attention", scaled_dot_product_attention, key)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's operator: of query [B,N,Sq,D], key and value [B,Nkv,Skv,D] the attention [B,N,Sq,D].

    Fused it keeps query, key, value, the result and two numbers of float32, eight times each, for each row; its values
    are those of the CPU. Not fused, which keeps the scores, are other dimensions and dtypes, a mask that is not bool,
    and dropout, which a real NPU fuses as well.
    """
    if not _is_fused(query, key, value, attn_mask, dropout_p):
        found: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, _added(attn_mask, query), dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
        return found
    if is_causal and attn_mask is not None:
        raise RuntimeError("The attn_mask should be none when is_causal is true, but got it")
    grouped = query.shape[1] != key.shape[1]

    def compute(query: Tensor, key: Tensor, value: Tensor, masked: Tensor | None) -> tuple[Tensor]:
        keep = None if masked is None or is_causal else ~masked
        out = functional.scaled_dot_product_attention(
            query, key, value, keep, 0.0, is_causal, scale=scale, enable_gqa=grouped
        )
        return (out,)

    rows = Result((*query.shape[:3], 8), torch.float32)
    out = Result((*query.shape[:3], value.shape[-1]), query.dtype)
    flops = flops_of(query.shape[0] * query.shape[1], query.shape[2], key.shape[2], query.shape[3], is_causal)
    given = (query, key, value, _masked(attn_mask, is_causal, query, key))
    return fused("attention", compute, (out, rows, rows), given, flops=flops)[0]


def _is_fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> bool:
    return (
        dropout == 0
        and is_fusible((query, key, value, mask))
        and query.dim() == key.dim() == value.dim() == 4
        and query.dtype in _DTYPES
        and query.dtype == key.dtype == value.dtype
        and (mask is None or mask.dtype is torch.bool)
        and 0 < key.shape[1] <= query.shape[1] <= _HEADS
        and query.shape[1] % key.shape[1] == 0
        and query.shape[3] == key.shape[3] <= _WIDTH
        and key.shape[:3] == value.shape[:3]
        and query.shape[0] == key.shape[0]
        and query.numel() * key.numel() > 0
    )


def _added(mask: Tensor | None, query: Tensor) -> Tensor | None:
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))


def _masked(mask: Tensor | None, is_causal: bool, query: Tensor, key: Tensor) -> Tensor | None:
    """What the fused operator is given and keeps: what is left out, or for the causal rule a template."""
    if is_causal:
        # It makes the upper triangle of a matrix of ones. Nobody reads it: the rule is known.
        whole = torch.empty(TEMPLATE, TEMPLATE, dtype=torch.bool, device=query.device)
        return torch.empty_like(whole)
    if mask is None:
        return None
    batch, heads, rows = query.shape[:3]
    columns = key.shape[2]
    as_it_is = mask.shape[-2:] == (rows, columns) and (
        mask.dim() == 2 or (mask.dim() == 4 and mask.shape[:2] in ((batch, heads), (batch, 1), (1, 1)))
    )
    return (mask if as_it_is else mask.expand(batch, heads, rows, columns)).logical_not()
