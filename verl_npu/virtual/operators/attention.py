"""npu_fusion_attention: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_fusion_attention.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .fused import Result, flops_of, fused, is_fusible
from .heads import Layout, by_head, from_head, layout_of, sequences_of
from .masks import UNBOUNDED, Rule, SparseMode, check_prefix, rule_of
from .scores import How, attend, check_heads

__all__ = ["check", "dense", "npu_fusion_attention", "refuse"]

_TOKENS = {Layout.BSH: 1, Layout.SBH: 0, Layout.BSND: 1, Layout.BNSD: 2}
_CAUSAL = (SparseMode.LEFT_UP_CAUSAL, SparseMode.RIGHT_DOWN_CAUSAL)


def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNBOUNDED,
    next_tockens: int = UNBOUNDED,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """Attention: `dropout(softmax(mask(scale * (Q K^T + pse)))) V`, computed in float32, differentiable in query, key,
    value, pse and sink.

    Shapes: query [B,S,N*D] (BSH), [S,B,N*D] (SBH), [B,S,N,D] (BSND), [B,N,S,D] (BNSD) or [T,N,D] (TND); key and value
    alike with Nkv heads, N a multiple of Nkv. TND takes the cumulative lengths of its sequences, without the leading
    0. `atten_mask` is True where a score is masked out: the scores' own shape for sparse modes 0 and 1, a 2048x2048
    template for 2 to 4, 7 and 8 (a packed batch), 3072x2048 for 6. With `atten_mask=None` the sparse mode is ignored,
    as documented. `prefix` has a length for each sequence (modes 5 and 6). `pse` [B|1,N,Sq|1,Skv] is added to the
    products, not in TND. `sink` [N] is one more score of each row, without a value. A row that keeps nothing gives
    zeros.

    Returns:
        (attention, softmax_max, softmax_sum, empty, seed, offset, numels); maximum and sum are float32 [B,N,S,8], for
        TND [T,N,8], one value eight times.

    Raises:
        RuntimeError: an argument out of range, with what was expected.
        NotImplementedError: padding_mask, softmax_layout, a dropout mask, seed or offset of one's own, pse in TND.
    """
    refuse(
        padding_mask=padding_mask,
        softmax_layout=softmax_layout or None,
        dropout_mask=dropout_mask,
        seed=seed or None,
        offset=offset or None,
    )
    layout = layout_of(input_layout)
    how = How(scale, keep_prob, pse, sink)
    rule = rule_of(sparse_mode, atten_mask, pre_tockens, next_tockens, prefix, packed=layout is Layout.TND)
    check(query, key, value, head_num, layout, how)
    packed = layout is Layout.TND
    lengths = sequences_of(query, key, actual_seq_qlen, actual_seq_kvlen) if packed else []
    check_prefix(rule, len(lengths) if packed else query.shape[1 if layout is Layout.SBH else 0])

    def compute(
        query: Tensor, key: Tensor, value: Tensor, pse: Tensor | None, sink: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        here, bound = replace(how, pse=pse, sink=sink), replace(rule, mask=mask)
        if packed:
            return _packed(query, key, value, here, bound, lengths)
        return _dense(query, key, value, head_num, layout, here, bound)

    given = (query, key, value, pse, sink, atten_mask)
    # What is dropped has to be drawn from the NPU's own generator.
    if keep_prob < 1 or not is_fusible(given):
        out, top, total = compute(*given)
    else:
        results = _results(query, key, value, head_num, layout)
        flops = _flops(query, results[1], key, layout, lengths, is_causal=rule.mode in _CAUSAL)
        out, top, total = fused("attention", compute, results, given, flops=flops)
    return out, top, total, query.new_empty(0), 0, 0, 0


def _results(query: Tensor, key: Tensor, value: Tensor, heads: int, layout: Layout) -> tuple[Result, Result, Result]:
    """What the attention, the row maximum and the row sum look like.

    Raises:
        RuntimeError: the heads of query are no multiple of those of key.
    """
    if layout is Layout.TND:
        check_heads(heads, key.shape[1])
        rows: tuple[int, ...] = (query.shape[0], heads)
        shape = (*query.shape[:2], value.shape[-1])
    else:
        # Views of the right shapes: nothing is computed.
        q, k, v = dense(query.detach(), key.detach(), value.detach(), heads, layout)
        check_heads(heads, k.shape[1])
        rows = tuple(q.shape[:3])
        width = v.shape[-1]
        shape = (*query.shape[:2], heads * width) if query.dim() == 3 else (*query.shape[:3], width)
    maximum = Result((*rows, 8), torch.float32)
    return Result(shape, query.dtype), maximum, maximum


def _flops(
    query: Tensor, rows: Result, key: Tensor, layout: Layout, lengths: Sequence[tuple[slice, slice]], is_causal: bool
) -> float:
    """What it takes an NPU. `rows` are the row maxima, [B,N,S,8], in TND [T,N,8]."""
    if layout is Layout.TND:
        sizes = [(queries.stop - queries.start, keys.stop - keys.start) for queries, keys in lengths]
        return sum(flops_of(rows.shape[1], *size, query.shape[-1], is_causal) for size in sizes)
    batch, heads, queries, _ = rows.shape
    keys = key.shape[_TOKENS[layout]]
    return flops_of(batch * heads, queries, keys, query.numel() // (batch * heads * queries), is_causal)


def refuse(**arguments: object) -> None:
    """Raise NotImplementedError for the first argument that is given."""
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"npu_fusion_attention: {name} is not implemented by the virtual Ascend")


def check(query: Tensor, key: Tensor, value: Tensor, head_num: int, layout: Layout, how: How) -> None:
    """Raise RuntimeError for tensors or factors that do not fit the layout, or each other."""
    dims = 4 if layout in (Layout.BSND, Layout.BNSD) else 3
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != dims:
            raise RuntimeError(
                f"npu_fusion_attention: {name} must have {dims} dimensions in layout {layout.value}, but has "
                f"{tensor.dim()}"
            )
        if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise RuntimeError(f"npu_fusion_attention: {name} must be fp16, bf16 or fp32, but is {tensor.dtype}")
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            f"npu_fusion_attention: query, key and value must have one dtype, but have {query.dtype}, "
            f"{key.dtype}, {value.dtype}"
        )
    if not 0 < how.keep_prob <= 1:
        raise RuntimeError(f"npu_fusion_attention: keep_prob must be in range of (0, 1], but got {how.keep_prob}")
    heads = _heads(query, layout, head_num)
    if heads != head_num:
        raise RuntimeError(f"npu_fusion_attention: head_num is {head_num}, but query has {heads} heads")
    _check_extras(how.pse, how.sink, head_num, layout)


def _heads(tensor: Tensor, layout: Layout, head_num: int) -> int:
    if layout is Layout.BNSD:
        return int(tensor.shape[1])
    if layout in (Layout.BSND, Layout.TND):
        return int(tensor.shape[-2])
    return head_num if head_num > 0 and tensor.shape[-1] % head_num == 0 else -1


def _check_extras(pse: Tensor | None, sink: Tensor | None, heads: int, layout: Layout) -> None:
    if pse is not None and layout is Layout.TND:
        raise NotImplementedError("npu_fusion_attention: pse in TND is not implemented by the virtual Ascend")
    if pse is not None and (pse.dim() != 4 or pse.shape[1] != heads):
        raise RuntimeError(f"npu_fusion_attention: pse must be [B|1,{heads},Sq|1,Skv], but is {tuple(pse.shape)}")
    if sink is not None and (tuple(sink.shape) != (heads,) or sink.dtype is not torch.float32):
        raise RuntimeError(
            f"npu_fusion_attention: sink must be float32 [{heads}], but is {sink.dtype} {tuple(sink.shape)}"
        )


def _packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    how: How,
    rule: Rule,
    blocks: list[tuple[slice, slice]],
) -> tuple[Tensor, Tensor, Tensor]:
    tokens, heads, _ = query.shape
    outs, tops, totals = [], [], []
    for number, (rows, columns) in enumerate(blocks):
        size, width = rows.stop - rows.start, columns.stop - columns.start
        if size == 0:
            continue
        bound = rule.of_sequence(number, len(blocks), size, width)
        out, top, total = attend(
            query[rows].transpose(0, 1).unsqueeze(0),
            key[columns].transpose(0, 1).unsqueeze(0),
            value[columns].transpose(0, 1).unsqueeze(0),
            how,
            bound.keep(size, width, query.device),
        )
        outs.append(out[0].transpose(0, 1))
        tops.append(top[0].transpose(0, 1))
        totals.append(total[0].transpose(0, 1))
    covered = sum(part.shape[0] for part in outs)
    if covered < tokens:
        outs.append(query.new_zeros(tokens - covered, heads, value.shape[-1]))
        for parts in (tops, totals):
            parts.append(torch.zeros(tokens - covered, heads, 8, device=query.device))
    return torch.cat(outs), torch.cat(tops), torch.cat(totals)


def _dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    layout: Layout,
    how: How,
    rule: Rule,
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = dense(query, key, value, heads, layout)
    out, top, total = attend(q, k, v, how, rule.keep(q.shape[2], k.shape[2], query.device))
    return from_head(out, layout), top, total


def dense(query: Tensor, key: Tensor, value: Tensor, heads: int, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value from a dense layout to [B,N,S,D]; key and value have as many heads as fit their width."""
    width = query.shape[-1] // heads if layout in (Layout.BSH, Layout.SBH) else query.shape[-1]
    key_heads = key.shape[-1] // width if layout in (Layout.BSH, Layout.SBH) else 0
    return by_head(query, layout, heads), by_head(key, layout, key_heads), by_head(value, layout, key_heads)
