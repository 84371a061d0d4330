"""npu_fused_infer_attention_score and its second version: op-plugin,
docs/zh/custom_APIs/torch_npu/torch_npu-npu_fused_infer_attention_score.md and _v2.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from .gradient import without_formula
from .masks import UNBOUNDED, Rule, SparseMode
from .scores import How, attend
from .sequences import cache_lengths, cached, joined, layouts, sequences, wider

__all__ = ["npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"]


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

    Shapes: query [B,S,N*D] (BSH), [B,S,N,D] (BSND), [B,N,S,D] (BNSD) or [T,N,D] (TND), and the result alike or, behind
    an underscore, as BSND, NBSD or NTD; key and value as query, or, with `block_table` int32 [B, most blocks], the
    cache [blocks, block_size, Nkv*D] or [blocks, Nkv, block_size, D]. Lengths are of each sequence, cumulative in TND
    except for a cache's. What lies beyond a sequence's length gives zeros. `num_key_value_heads=0` means as many as
    `num_heads`. `query_rope` and `key_rope` are further columns of query and key.

    Returns:
        (attention, log of the sum of exponentials float32 [B,N,S,1], in TND [T,N,1]; empty without the flag).

    Raises:
        RuntimeError: an argument out of range, and in backward.
        NotImplementedError: quantisation, pse_shift, shared prefixes, padding sizes, sparse modes above 4.
    """
    _refuse("npu_fused_infer_attention_score", locals(), _UNWRITTEN)
    key_heads = num_key_value_heads or num_heads
    if (query_rope is None) != (key_rope is None):
        raise RuntimeError("npu_fused_infer_attention_score: query_rope and key_rope go together")
    layout, result = layouts(input_layout)
    _check(sparse_mode, num_heads, key_heads)
    if query.dim() != (3 if layout in ("BSH", "TND") else 4):
        raise RuntimeError(f"npu_fused_infer_attention_score: query has {query.dim()} dimensions in {input_layout}")
    if block_table is None and value.dim() != query.dim():
        raise RuntimeError(
            f"npu_fused_infer_attention_score: value must have as many dimensions as query, but has {value.dim()}"
        )

    def compute() -> tuple[Tensor, ...]:
        queries = sequences(query, layout, num_heads, actual_seq_lengths)
        if query_rope is not None:
            queries = wider(queries, sequences(query_rope, layout, num_heads, actual_seq_lengths))
        if block_table is None:
            keys = sequences(key, layout, key_heads, actual_seq_lengths_kv)
            values = sequences(value, layout, key_heads, actual_seq_lengths_kv)
            if key_rope is not None:
                keys = wider(keys, sequences(key_rope, layout, key_heads, actual_seq_lengths_kv))
        else:
            lengths = cache_lengths(actual_seq_lengths_kv, len(queries))
            keys = cached(key, block_table, block_size, key_heads, lengths)
            if key_rope is not None:
                keys = wider(keys, cached(key_rope, block_table, block_size, key_heads, lengths))
            values = cached(value, block_table, block_size, key_heads, lengths)
        rule = Rule(SparseMode(sparse_mode), atten_mask, pre_tokens, next_tokens)
        outs, lses = _each(queries, keys, values, rule, scale)
        rows = query.shape[{"TND": 0, "BNSD": 2}.get(layout, 1)]
        lse = joined(lses, rows, "TND" if layout == "TND" else "BNSD")
        return joined(outs, rows, result), lse if softmax_lse_flag else lse.new_empty(0)

    attention, lse = without_formula("npu_fused_infer_attention_score", (query, key, value), compute)
    return attention, lse


def npu_fused_infer_attention_score_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    pse_shift: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    block_table: Tensor | None = None,
    dequant_scale_query: Tensor | None = None,
    dequant_scale_key: Tensor | None = None,
    dequant_offset_key: Tensor | None = None,
    dequant_scale_value: Tensor | None = None,
    dequant_offset_value: Tensor | None = None,
    dequant_scale_key_rope: Tensor | None = None,
    quant_scale_out: Tensor | None = None,
    quant_offset_out: Tensor | None = None,
    quant_scale_p: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_scale: float = 1.0,
    pre_tokens: int = UNBOUNDED,
    next_tokens: int = UNBOUNDED,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    block_size: int = 0,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    value_quant_mode: int = 0,
    inner_precise: int = 0,
    return_softmax_lse: bool = False,
    query_dtype: int | None = None,
    key_dtype: int | None = None,
    value_dtype: int | None = None,
    query_rope_dtype: int | None = None,
    key_rope_dtype: int | None = None,
    key_shared_prefix_dtype: int | None = None,
    value_shared_prefix_dtype: int | None = None,
    dequant_scale_query_dtype: int | None = None,
    dequant_scale_key_dtype: int | None = None,
    dequant_scale_value_dtype: int | None = None,
    dequant_scale_key_rope_dtype: int | None = None,
    out_dtype: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`npu_fused_infer_attention_score` by other names of its arguments.

    Raises:
        RuntimeError: an argument out of range, and in backward.
        NotImplementedError: quantisation, pse_shift, a sink, dtypes.
    """
    _refuse("npu_fused_infer_attention_score_v2", locals(), _UNWRITTEN_V2)
    return npu_fused_infer_attention_score(
        query,
        key,
        value,
        atten_mask=atten_mask,
        query_rope=query_rope,
        key_rope=key_rope,
        actual_seq_lengths=actual_seq_qlen,
        actual_seq_lengths_kv=actual_seq_kvlen,
        block_table=block_table,
        num_heads=num_query_heads,
        num_key_value_heads=num_key_value_heads,
        scale=softmax_scale,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        input_layout=input_layout,
        sparse_mode=sparse_mode,
        block_size=block_size,
        inner_precise=inner_precise,
        softmax_lse_flag=return_softmax_lse,
    )


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
    "key_rope_antiquant_scale",
    "antiquant_mode",
    "key_antiquant_mode",
    "value_antiquant_mode",
)


_UNWRITTEN_V2 = (
    "pse_shift",
    "dequant_scale_query",
    "dequant_scale_key",
    "dequant_offset_key",
    "dequant_scale_value",
    "dequant_offset_value",
    "dequant_scale_key_rope",
    "quant_scale_out",
    "quant_offset_out",
    "quant_scale_p",
    "learnable_sink",
    "query_quant_mode",
    "key_quant_mode",
    "value_quant_mode",
    "query_dtype",
    "key_dtype",
    "value_dtype",
    "query_rope_dtype",
    "key_rope_dtype",
    "key_shared_prefix_dtype",
    "value_shared_prefix_dtype",
    "dequant_scale_query_dtype",
    "dequant_scale_key_dtype",
    "dequant_scale_value_dtype",
    "dequant_scale_key_rope_dtype",
    "out_dtype",
)


def _refuse(operator: str, given: Mapping[str, object], unwritten: Sequence[str]) -> None:
    for name in unwritten:
        value = given[name]
        if isinstance(value, Tensor) or value not in (None, 0):
            raise NotImplementedError(f"{operator}: {name} is not implemented by the virtual Ascend")


def _check(mode: int, heads: int, key_heads: int) -> None:
    name = "npu_fused_infer_attention_score"
    if not 0 <= mode <= 4:
        raise NotImplementedError(f"{name}: sparse_mode {mode} (0 to 4 are written)")
    if heads <= 0:
        raise RuntimeError(f"{name}: num_heads must be greater than 0, but is {heads}")
    if heads % key_heads:
        raise RuntimeError(f"{name}: num_heads ({heads}) must be a multiple of num_key_value_heads ({key_heads})")


def _each(
    queries: Sequence[Tensor], keys: Sequence[Tensor], values: Sequence[Tensor], rule: Rule, scale: float
) -> tuple[list[Tensor], list[Tensor]]:
    """The attention of each sequence [N,S,D], and the log of the sum of its exponentials [N,S,1]."""
    if not len(queries) == len(keys) == len(values):
        raise RuntimeError(
            f"npu_fused_infer_attention_score: {len(queries)} sequences of queries, but {len(keys)} of keys and "
            f"{len(values)} of values"
        )
    outs, lses = [], []
    for number, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        own = _rule_of_sequence(rule, number, len(queries), q.shape[1], k.shape[1])
        keep = own.keep(q.shape[1], k.shape[1], q.device)
        while keep is not None and keep.dim() < 4:
            keep = keep.unsqueeze(0)
        out, top, total = attend(q[None], k[None], v[None], How(scale), keep)
        outs.append(out[0])
        lses.append((top + total.log())[0, ..., :1])
    return outs, lses


def _rule_of_sequence(rule: Rule, number: int, count: int, rows: int, columns: int) -> Rule:
    kind, mask = rule.mode, rule.mask
    if mask is not None and mask.dim() > 2 and mask.shape[0] == count:
        mask = mask[number]
    if rows == 1 and kind is not SparseMode.DEFAULT:
        # Documented: one query at a time has no sparse mode, and its mask is whole.
        kind = SparseMode.ALL
        if mask is not None and tuple(mask.shape[-2:]) == (2048, 2048):
            mask = None
    if mask is not None and kind in (SparseMode.DEFAULT, SparseMode.ALL):
        mask = mask[..., :rows, :columns]
    return Rule(kind, mask, rule.before, rule.after)
