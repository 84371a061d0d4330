"""Ring attention, which computes attention one block of keys at a time: the gradient of a block, and the merging of
two blocks' results.

Source: op-plugin, op_plugin_functions.yaml, and docs/zh of aclnnFlashAttentionScoreGrad and aclnnRingAttentionUpdate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import (
    UNBOUNDED,
    How,
    Layout,
    Rule,
    by_head,
    check,
    check_prefix,
    dense,
    from_head,
    layout_of,
    rule_of,
    sequences_of,
    through,
)
from .gradient import without_formula


def npu_fusion_attention_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Tensor | None = None,
    atten_mask: Tensor | None = None,
    softmax_max: Tensor | None = None,
    softmax_sum: Tensor | None = None,
    softmax_in: Tensor | None = None,
    attention_in: Tensor | None = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNBOUNDED,
    next_tockens: int = UNBOUNDED,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradient of `npu_fusion_attention`, in float32.

    softmax_max and softmax_sum ([B,N,S,8], or [T,N,8] for TND) and attention_in must be the results for the complete
    rows. In ring attention, they cover all blocks, whereas key and value are one block.

    Returns:
        The gradients of query, key, value, pse, and sink. They are empty for arguments that were not passed. torch_npu
        before 2.9 returns only the first four.

    Raises:
        RuntimeError: an argument is out of range, or the maximum, the sum, or the attention is missing.
        NotImplementedError: dropout, or a feature that the forward operator does not implement, is requested.
    """
    if keep_prob != 1:  # the scores that the forward pass dropped are not known here
        raise NotImplementedError("npu_fusion_attention_grad: virtual-ascend does not implement keep_prob")
    if softmax_max is None or softmax_sum is None or attention_in is None:
        raise RuntimeError("npu_fusion_attention_grad: softmax_max, softmax_sum, and attention_in are required")
    layout = layout_of(input_layout)
    how = How(scale_value, 1.0, pse, sink)
    rule = rule_of(sparse_mode, atten_mask, pre_tockens, next_tockens, prefix, packed=layout is Layout.TND)
    check(query, key, value, head_num, layout, how)
    if dy.shape != attention_in.shape:
        raise RuntimeError(
            f"npu_fusion_attention_grad: dy and attention_in must have the same shape, but dy has shape "
            f"{tuple(dy.shape)}, and attention_in has shape {tuple(attention_in.shape)}"
        )
    known = _Known(attention_in, softmax_max[..., :1], softmax_sum[..., :1])

    def compute() -> tuple[Tensor, ...]:
        if layout is Layout.TND:
            blocks = sequences_of(query, key, actual_seq_qlen, actual_seq_kvlen)
            return _packed((query, key, value), dy, known, blocks, how, rule)
        return _whole((query, key, value), dy, known, head_num, layout, how, rule)

    given = (query, key, value, dy, *(tensor for tensor in (pse, sink) if tensor is not None))
    dq, dk, dv, dpse, dsink = without_formula("npu_fusion_attention_grad", given, compute)
    return dq, dk, dv, dpse, dsink


@dataclass(frozen=True, slots=True)
class _Known:
    """The results of the forward operator: the attention, and the maximum and sum of its rows [B,N,S,1], TND
    [T,N,1]."""

    attention: Tensor
    top: Tensor
    total: Tensor


def _whole(
    inputs: tuple[Tensor, Tensor, Tensor],
    dy: Tensor,
    known: _Known,
    heads: int,
    layout: Layout,
    how: How,
    rule: Rule,
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key, value, pse, and sink in a dense layout."""
    check_prefix(rule, inputs[0].shape[1 if layout is Layout.SBH else 0])
    q, k, v = dense(*inputs, heads, layout)
    gradient, result = by_head(dy, layout, heads), by_head(known.attention, layout, heads)
    keep = rule.keep(q.shape[2], k.shape[2], q.device)
    dq, dk, dv, dpse, dsink = through(q, k, v, gradient, result, known.top, known.total, how, keep)
    return from_head(dq, layout), from_head(dk, layout), from_head(dv, layout), dpse, dsink


def _packed(
    inputs: tuple[Tensor, Tensor, Tensor],
    dy: Tensor,
    known: _Known,
    blocks: Sequence[tuple[slice, slice]],
    how: How,
    rule: Rule,
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key, value, pse, and sink of a packed batch, one sequence at a time."""
    query, key, value = inputs
    check_prefix(rule, len(blocks))
    found = [torch.zeros_like(tensor) for tensor in inputs]
    to_sink = query.new_empty(0) if how.sink is None else torch.zeros_like(how.sink)
    for number, (rows, columns) in enumerate(blocks):
        size, width = rows.stop - rows.start, columns.stop - columns.start
        if size == 0:
            continue
        keep = rule.of_sequence(number, len(blocks), size, width).keep(size, width, query.device)
        q, gradient, result, top, total = (
            tensor[rows].transpose(0, 1)[None] for tensor in (query, dy, known.attention, known.top, known.total)
        )
        k, v = (tensor[columns].transpose(0, 1)[None] for tensor in (key, value))
        *of_block, _, dsink = through(q, k, v, gradient, result, top, total, how, keep)
        for whole, part, where in zip(found, of_block, (rows, columns, columns), strict=True):
            whole[where] = part[0].transpose(0, 1)
        to_sink = to_sink + dsink
    return *found, query.new_empty(0), to_sink


def npu_ring_attention_update(
    prev_attn_out: Tensor,
    prev_softmax_max: Tensor,
    prev_softmax_sum: Tensor,
    cur_attn_out: Tensor,
    cur_softmax_max: Tensor,
    cur_softmax_sum: Tensor,
    *,
    actual_seq_qlen: Tensor | None = None,
    input_layout: str = "SBH",
    input_softmax_layout: str = "",
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the attention results for two sets of keys into the attention over both sets. Has no backward pass.

    Shapes: in the SBH layout, attention [S,B,N*D], maximum and sum [B,N,S,8]; in the TND layout, attention [T,N,D],
    maximum and sum [T,N,8]. Maximum and sum are float32. TND requires `actual_seq_qlen` (int64).

    Returns:
        (attention, softmax_max, softmax_sum), with the same shapes and dtypes.

    Raises:
        RuntimeError: an argument is out of range, or the backward pass is run.
        NotImplementedError: the softmax layout differs from the layout of the attention.
    """
    packed = _check_update(
        (prev_attn_out, cur_attn_out),
        (prev_softmax_max, prev_softmax_sum, cur_softmax_max, cur_softmax_sum),
        actual_seq_qlen,
        input_layout,
        input_softmax_layout,
    )

    def compute() -> tuple[Tensor, ...]:
        top = torch.maximum(prev_softmax_max, cur_softmax_max)
        before = prev_softmax_sum * torch.exp(prev_softmax_max - top)
        now = cur_softmax_sum * torch.exp(cur_softmax_max - top)
        total = before + now
        layout = Layout.SBH
        parts = []
        for attention, share in ((prev_attn_out, before / total), (cur_attn_out, now / total)):
            heads = attention if packed else by_head(attention, layout, share.shape[1])
            parts.append(heads.float() * share[..., :1])
        joined = (parts[0] + parts[1]).to(prev_attn_out.dtype)
        return joined if packed else from_head(joined, layout), top, total

    given = (prev_attn_out, prev_softmax_max, prev_softmax_sum, cur_attn_out, cur_softmax_max, cur_softmax_sum)
    attention, top, total = without_formula("npu_ring_attention_update", given, compute)
    return attention, top, total


def _check_update(
    attentions: tuple[Tensor, Tensor],
    statistics: tuple[Tensor, ...],
    lengths: Tensor | None,
    layout: str,
    softmax_layout: str,
) -> bool:
    """Check the arguments, and return whether the batch is packed."""
    name = "npu_ring_attention_update"
    if layout not in ("SBH", "TND"):
        raise RuntimeError(f"{name}: input_layout only supports 'SBH' or 'TND', but got {layout!r}")
    if softmax_layout not in ("", "SBH", "TND"):
        raise RuntimeError(
            f"{name}: input_softmax_layout only supports '', 'SBH' or 'TND', but got {softmax_layout!r}"
        )
    if softmax_layout not in ("", layout):
        raise NotImplementedError(
            f"{name}: virtual-ascend does not implement input_softmax_layout {softmax_layout!r} with input_layout "
            f"{layout!r}"
        )
    first, second = attentions
    if first.shape != second.shape or first.dtype != second.dtype or first.dim() != 3:
        raise RuntimeError(
            f"{name}: prev_attn_out and cur_attn_out must have 3 dimensions, the same shape, and the same dtype"
        )
    if first.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise RuntimeError(f"{name}: attention must be fp16, bf16 or fp32, but is {first.dtype}")
    shape = statistics[0].shape
    if any(tensor.shape != shape or tensor.dtype is not torch.float32 for tensor in statistics) or shape[-1:] != (8,):
        raise RuntimeError(
            f"{name}: the softmax tensors must be float32 and have the same shape, with a last dimension of 8, but "
            f"got {', '.join(f'{tensor.dtype} {tuple(tensor.shape)}' for tensor in statistics)}"
        )
    packed = layout == "TND"
    if len(shape) != (3 if packed else 4):
        raise RuntimeError(
            f"{name}: the softmax tensors must have {3 if packed else 4} dimensions, but have {len(shape)}"
        )
    if packed and lengths is None:
        raise RuntimeError(f"{name}: actual_seq_qlen is required when input_layout is 'TND'")
    if lengths is not None and lengths.dtype is not torch.int64:
        raise RuntimeError(f"{name}: actual_seq_qlen must be int64, but is {lengths.dtype}")
    return packed
