"""npu_fused_infer_attention_score: op-plugin,
docs/zh/custom_APIs/torch_npu/torch_npu-npu_fused_infer_attention_score.md."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verl_npu.virtual.operators.attention import UNBOUNDED, SparseMode, _attend, _How, _Rule
from verl_npu.virtual.operators.gradient import without_formula

_LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND", "TND")


def npu_fused_infer_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    pse_shift: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    dequant_scale1: Tensor | None = None,
    quant_scale1: Tensor | None = None,
    dequant_scale2: Tensor | None = None,
    quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None,
    antiquant_scale: Tensor | None = None,
    antiquant_offset: Tensor | None = None,
    key_antiquant_scale: Tensor | None = None,
    key_antiquant_offset: Tensor | None = None,
    value_antiquant_scale: Tensor | None = None,
    value_antiquant_offset: Tensor | None = None,
    block_table: Tensor | None = None,
    query_padding_size: Tensor | None = None,
    kv_padding_size: Tensor | None = None,
    key_shared_prefix: Tensor | None = None,
    value_shared_prefix: Tensor | None = None,
    actual_shared_prefix_len: Sequence[int] | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    key_rope_antiquant_scale: Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = UNBOUNDED,
    next_tokens: int = UNBOUNDED,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    antiquant_mode: int = 0,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    softmax_lse_flag: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention for inference, computed in float32; no gradient.

    Shapes: query [B,S,N*D] (BSH), [B,S,N,D] (BSND), [B,N,S,D] (BNSD; the result as BSND in BNSD_BSND) or [T,N,D]
    (TND); key and value alike, or, with `block_table` int32 [B, most blocks], the cache [blocks, block_size, Nkv*D] or
    [blocks, Nkv, block_size, D]. Lengths are of each sequence, cumulative in TND except for a cache's. What lies
    beyond a sequence's length gives zeros. `num_key_value_heads=0` means as many as `num_heads`.

    Returns:
        (attention, log of the sum of exponentials float32 [B,N,S,1], in TND [T,N,1]; empty without the flag).

    Raises:
        RuntimeError: an argument out of range, and in backward.
        NotImplementedError: quantisation, pse_shift, rope, shared prefixes, padding sizes, sparse modes above 4.
    """
    given = locals()
    for name in _UNWRITTEN:
        if given[name] is not None and given[name] != 0:
            raise NotImplementedError(
                f"npu_fused_infer_attention_score: {name} is not implemented by the virtual Ascend"
            )
    if input_layout not in _LAYOUTS:
        raise RuntimeError(
            f"npu_fused_infer_attention_score: input_layout should be {'/'.join(_LAYOUTS)}, but got {input_layout!r}"
        )
    if not 0 <= sparse_mode <= 4:
        raise NotImplementedError(f"npu_fused_infer_attention_score: sparse_mode {sparse_mode} (0 to 4 are written)")
    key_heads = num_key_value_heads or num_heads
    if num_heads % key_heads:
        raise RuntimeError(
            f"npu_fused_infer_attention_score: num_heads ({num_heads}) must be a multiple of num_key_value_heads "
            f"({key_heads})"
        )

    def compute() -> tuple[Tensor, ...]:
        queries = _sequences(query, input_layout, num_heads, actual_seq_lengths)
        if block_table is None:
            keys = _sequences(key, input_layout, key_heads, actual_seq_lengths_kv)
            values = _sequences(value, input_layout, key_heads, actual_seq_lengths_kv)
        else:
            lengths = _cache_lengths(actual_seq_lengths_kv, len(queries))
            keys = _cached(key, block_table, block_size, key_heads, lengths)
            values = _cached(value, block_table, block_size, key_heads, lengths)
        if not len(queries) == len(keys) == len(values):
            raise RuntimeError(
                f"npu_fused_infer_attention_score: {len(queries)} sequences of queries, but {len(keys)} of keys and "
                f"{len(values)} of values"
            )
        outs, lses = [], []
        for number, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
            rule = _rule(
                atten_mask, number, len(queries), q.shape[1], k.shape[1], sparse_mode, pre_tokens, next_tokens
            )
            keep = rule.keep(q.shape[1], k.shape[1], q.device)
            while keep is not None and keep.dim() < 4:
                keep = keep.unsqueeze(0)
            out, top, total = _attend(q[None], k[None], v[None], _How(scale), keep)
            outs.append(out[0])
            lses.append((top + total.log())[0, ..., :1])
        rows = query.shape[{"TND": 0, "BNSD": 2, "BNSD_BSND": 2}.get(input_layout, 1)]
        lse = _joined(lses, rows, "TND" if input_layout == "TND" else "BNSD")
        return _joined(outs, rows, input_layout), lse if softmax_lse_flag else lse.new_empty(0)

    attention, lse = without_formula("npu_fused_infer_attention_score", (query, key, value), compute)
    return attention, lse


_UNWRITTEN = (
    "pse_shift",
    "dequant_scale1",
    "quant_scale1",
    "dequant_scale2",
    "quant_scale2",
    "quant_offset2",
    "antiquant_scale",
    "antiquant_offset",
    "key_antiquant_scale",
    "key_antiquant_offset",
    "value_antiquant_scale",
    "value_antiquant_offset",
    "query_padding_size",
    "kv_padding_size",
    "key_shared_prefix",
    "value_shared_prefix",
    "actual_shared_prefix_len",
    "query_rope",
    "key_rope",
    "key_rope_antiquant_scale",
    "antiquant_mode",
    "key_antiquant_mode",
    "value_antiquant_mode",
)


def _rule(
    mask: Tensor | None, number: int, count: int, rows: int, columns: int, mode: int, before: int, after: int
) -> _Rule:
    kind = SparseMode(mode)
    if mask is not None and mask.dim() > 2 and mask.shape[0] == count:
        mask = mask[number]
    if rows == 1 and mode:  # documented: one query at a time has no sparse mode, and its mask is whole
        kind = SparseMode.ALL
        if mask is not None and tuple(mask.shape[-2:]) == (2048, 2048):
            mask = None
    if mask is not None and kind in (SparseMode.DEFAULT, SparseMode.ALL):
        mask = mask[..., :rows, :columns]
    return _Rule(kind, mask, before, after)


def _sequences(tensor: Tensor, layout: str, heads: int, lengths: Sequence[int] | None) -> list[Tensor]:
    """Each sequence as [N,S,D], as long as it is."""
    if layout == "TND":
        if not lengths:
            raise RuntimeError("npu_fused_infer_attention_score: TND takes the sequences' cumulative lengths")
        starts = [0, *lengths[:-1]]
        return [tensor[start:end].transpose(0, 1) for start, end in zip(starts, lengths, strict=True)]
    if layout == "BSH":
        tensor = tensor.unflatten(-1, (heads, -1))
    by_head = tensor if layout in ("BNSD", "BNSD_BSND") else tensor.transpose(1, 2)
    if lengths is None:
        return list(by_head)
    if len(lengths) == 1:
        lengths = list(lengths) * by_head.shape[0]
    return [sequence[:, :length] for sequence, length in zip(by_head, lengths, strict=True)]


def _cache_lengths(lengths: Sequence[int] | None, count: int) -> list[int]:
    if lengths is None or len(lengths) not in (1, count):
        raise RuntimeError(
            f"npu_fused_infer_attention_score: a block_table needs actual_seq_lengths_kv of {count} sequences, but "
            f"got {lengths}"
        )
    return list(lengths) * count if len(lengths) == 1 else list(lengths)


def _cached(cache: Tensor, table: Tensor, size: int, heads: int, lengths: list[int]) -> list[Tensor]:
    blocks = cache.unflatten(-1, (heads, -1)).transpose(1, 2) if cache.dim() == 3 else cache  # [blocks,N,size,D]
    if blocks.shape[2] != size:
        raise RuntimeError(
            f"npu_fused_infer_attention_score: block_size is {size}, but blocks have {blocks.shape[2]} rows"
        )
    found = []
    for row, length in zip(table, lengths, strict=True):
        used = row[: -(-length // size)].long()
        found.append(blocks[used].transpose(0, 1).flatten(1, 2)[:, :length])
    return found


def _joined(parts: list[Tensor], rows: int, layout: str) -> Tensor:
    """Sequences [N,S,D] in one tensor of `rows` (of all tokens, in TND); what they do not fill is zero."""
    if layout == "TND":
        packed = torch.cat([part.transpose(0, 1) for part in parts])
        return torch.nn.functional.pad(packed, (0, 0, 0, 0, 0, rows - packed.shape[0]))
    out = torch.stack([torch.nn.functional.pad(part, (0, 0, 0, rows - part.shape[1])) for part in parts])
    if layout == "BSH":
        return out.transpose(1, 2).flatten(2)
    return out.transpose(1, 2) if layout in ("BSND", "BNSD_BSND") else out
