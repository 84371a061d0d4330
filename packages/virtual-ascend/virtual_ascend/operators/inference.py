"""Attention for inference: paged caches, latent attention, and scores over a cache.

ATB's operators that write keys and values into a paged cache: op-plugin, op_plugin/ops/atb/.

Multi-head latent attention for inference: op-plugin, docs/zh/custom_APIs/torch_npu/,
torch_npu-npu_interleave_rope.md and torch_npu-npu_kv_rmsnorm_rope_cache.md; for ATB's operators, op_plugin/ops/atb/,
RingMlaAtb.cpp and PagedCacheLoadAtb.cpp.

npu_fused_infer_attention_score and its second version, and npu_attention_update: op-plugin,
docs/zh/custom_APIs/torch_npu/torch_npu-npu_fused_infer_attention_score.md, _v2.md, and
torch_npu-npu_attention_update.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .attention import (
    UNBOUNDED,
    How,
    Rule,
    SparseMode,
    attend,
    cache_lengths,
    cached,
    check_half,
    joined,
    layouts,
    sequences,
    wider,
)
from .gradient import without_formula
from .schemas import renamed, with_signature_of


def _npu_reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> None:
    """Write each token's key and value into its slot of a paged cache. Tokens with a negative slot are skipped.

    Shapes: key and value [T,Nkv,D], caches [blocks, block size, Nkv, D], slot_indices int32 [T].

    Raises:
        RuntimeError: shapes or dtypes do not match, or a slot is outside the cache.
    """
    name = "_npu_reshape_and_cache"
    _write(name, key, key_cache, slot_indices)
    _write(name, value, value_cache, slot_indices)


def _npu_reshape_and_cache_siso(key: Tensor, key_cache: Tensor, slot_indices: Tensor) -> None:
    """`_npu_reshape_and_cache` with one cache."""
    _write("_npu_reshape_and_cache_siso", key, key_cache, slot_indices)


def npu_scatter_pa_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """Write each token's key and value into its slot of a paged cache. Tokens with a negative slot are skipped.

    Shapes: key [T,Nkv,Dk], value [T,Nkv,Dv], slot_mapping int32 or int64 [T], caches [blocks, block size, Nkv, D]
    with cache_mode Norm.

    Raises:
        RuntimeError: shapes or dtypes do not match, or a slot is outside the cache.
        NotImplementedError: the caches are in FRACTAL_NZ (PA_NZ).
    """
    name = "npu_scatter_pa_kv_cache"
    if cache_mode != "Norm":
        raise NotImplementedError(f"{name}: virtual-ascend does not implement cache_mode {cache_mode}")
    check_half(name, "key", key)
    if slot_mapping.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"{name}: slot_mapping must be int32 or int64, but is {slot_mapping.dtype}")
    for tensor, cache in ((key, key_cache), (value, value_cache)):
        _write(name, tensor, cache, slot_mapping.int())


def _write(name: str, tensor: Tensor, cache: Tensor, slots: Tensor) -> None:
    if slots.dtype != torch.int32:
        raise RuntimeError(f"{name}: slot_indices must be int32, but is {slots.dtype}")
    if tensor.dtype != cache.dtype:
        raise RuntimeError(
            f"{name}: the cache and the tensor to write must have the same dtype, but the cache is {cache.dtype}, and "
            f"the tensor is {tensor.dtype}"
        )
    if cache.dim() != 4 or tensor.shape[1:] != cache.shape[2:] or slots.numel() > tensor.shape[0]:
        raise RuntimeError(
            f"{name}: expected a tensor [tokens, heads, size], a cache [blocks, block size, heads, size], and at most "
            f"one slot for each token, but got shapes {tuple(tensor.shape)}, {tuple(cache.shape)}, and "
            f"{tuple(slots.shape)}"
        )
    flat, places = cache.view(-1, *cache.shape[2:]), slots.flatten().long()
    kept = places >= 0
    if bool((places >= flat.shape[0]).any()):
        raise RuntimeError(
            f"{name}: the slot {int(places.max())} is outside the cache, which has room for {flat.shape[0]} tokens"
        )
    flat.index_put_((places[kept],), tensor[: slots.numel()][kept])


_ROPE, _LATENT = 64, 512
_KERNELS = ("kernel_type_default", "kernel_type_high_precision")
_MASKS, _CALCULATIONS = ("no_mask", "mask_type_triu"), ("calc_type_default", "calc_type_first_ring")


def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Reorder the pairs of x so that all first elements precede all second elements, and apply the rotary embedding to
    the result. Has no backward pass.

    Shapes: x [B,N,S,64], cos and sin [B,1,S or 1,64] -> [B,N,S,64].

    Raises:
        RuntimeError: the shapes or dtypes are invalid, or the backward pass is run.
    """
    name = "npu_interleave_rope"
    for what, tensor in (("x", x), ("cos", cos), ("sin", sin)):
        check_half(name, what, tensor)
        if tensor.dim() != 4 or tensor.shape[-1] != _ROPE:
            raise RuntimeError(f"{name}: {what} must have shape [B,N,S,{_ROPE}], but has shape {tuple(tensor.shape)}")
    if cos.shape != sin.shape or cos.shape[1] != 1 or cos.shape[2] not in (1, x.shape[2]):
        raise RuntimeError(
            f"{name}: cos and sin must have shape [B,1,S or 1,{_ROPE}], but have shapes {tuple(cos.shape)} and "
            f"{tuple(sin.shape)}"
        )
    (rotated,) = without_formula(name, (x, cos, sin), lambda: (_rotated(x, cos, sin),))
    return rotated


def npu_kv_rmsnorm_rope_cache(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    *,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalize the latent part of kv, rotate the rest of kv as `npu_interleave_rope` does, and write both parts into
    paged caches.

    Tokens with a negative slot are skipped.

    Shapes: kv [B,1,S,576], gamma [512], cos and sin [B,1,S,64], index int64 [B*S] (slots), k_cache [blocks,block
    size,1,64], ckv_cache [blocks,block size,1,512].

    Returns:
        (k_cache, ckv_cache, the rotated part [B,1,S,64], the normed part [B,1,S,512]); the last two are empty unless
        is_output_kv is set.

    Raises:
        RuntimeError: the shapes or dtypes are invalid.
        NotImplementedError: the cache mode is neither PA nor PA_BNSD.
    """
    name = "npu_kv_rmsnorm_rope_cache"
    if cache_mode not in ("PA", "PA_BNSD"):
        raise NotImplementedError(f"{name}: virtual-ascend does not implement cache_mode {cache_mode}")
    check_half(name, "kv", kv)
    if kv.dim() != 4 or kv.shape[1] != 1 or kv.shape[-1] != _LATENT + _ROPE:
        raise RuntimeError(f"{name}: kv must have shape [B,1,S,{_LATENT + _ROPE}], but has shape {tuple(kv.shape)}")
    if gamma.dim() != 1:
        raise RuntimeError(f"{name}: gamma must have shape [{_LATENT}], but has shape {tuple(gamma.shape)}")
    for what, tensor in (("cos", cos), ("sin", sin)):
        if tensor.dim() != 4:
            raise RuntimeError(f"{name}: {what} must have shape [B,1,S,{_ROPE}], but has shape {tuple(tensor.shape)}")
    if index.dtype != torch.int64 or index.numel() != kv.shape[0] * kv.shape[2]:
        raise RuntimeError(
            f"{name}: index must have dtype int64 and shape [{kv.shape[0] * kv.shape[2]}], but has dtype "
            f"{index.dtype} and shape {tuple(index.shape)}"
        )
    for what, cache, width in (("k_cache", k_cache, _ROPE), ("ckv_cache", ckv_cache, _LATENT)):
        if cache.dim() != 4 or tuple(cache.shape[2:]) != (1, width) or cache.dtype != kv.dtype:
            raise RuntimeError(
                f"{name}: {what} must have shape [blocks,block size,1,{width}] and dtype {kv.dtype}, but has shape "
                f"{tuple(cache.shape)} and dtype {cache.dtype}"
            )
    with torch.no_grad():
        latent, rope = kv.split([_LATENT, _ROPE], dim=-1)
        wide = latent.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon) * gamma.float()
        parts = (_rotated(rope, cos, sin), normed.to(kv.dtype))
        kept = index >= 0
        for cache, part in zip((k_cache, ckv_cache), parts, strict=True):
            cache.view(-1, part.shape[-1])[index[kept]] = part.reshape(-1, part.shape[-1])[kept]
    empty = kv.new_empty(0)
    return k_cache, ckv_cache, *(parts if is_output_kv else (empty, empty))


def npu_ring_mla(
    q_nope: Tensor,
    q_rope: Tensor,
    k_nope: Tensor,
    k_rope: Tensor,
    value: Tensor,
    mask: Tensor,
    seqlen: Tensor,
    head_num: int,
    kv_head_num: int,
    *,
    pre_out: Tensor | None = None,
    prev_lse: Tensor | None = None,
    qk_scale: float = 1,
    kernel_type: str | None = None,
    mask_type: str | None = None,
    input_layout: str | None = None,
    calc_type: str | None = None,
    output: Tensor | None = None,
    softmax_lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the attention of packed sequences, and merge it with the previous attention `pre_out` unless this is the
    first step of the ring. `output` and `softmax_lse` are new tensors unless they are passed.

    Shapes: q_nope [T,N,128], q_rope [T,N,64], k_nope [L,Nkv,128], k_rope [L,Nkv,64], value [L,Nkv,Dv], seqlen int32
    [B] or [2,B] (the lengths of queries and keys) on the host, pre_out and output [T,N,Dv], prev_lse and softmax_lse
    float32 [N,T]. The mask is a template, and mask_type_triu makes the attention causal.

    Raises:
        RuntimeError: the shapes or dtypes are invalid, or a mode is unknown.
    """
    name = "npu_ring_mla"
    causal = _mode(name, "mask_type", mask_type or "no_mask", _MASKS) == "mask_type_triu"
    first = _mode(name, "calc_type", calc_type or "calc_type_first_ring", _CALCULATIONS) == "calc_type_first_ring"
    _mode(name, "input_layout", input_layout or "type_bsnd", ("type_bsnd",))
    _mode(name, "kernel_type", kernel_type or "kernel_type_default", _KERNELS)
    check_half(name, "q_nope", q_nope)
    if seqlen.dtype != torch.int32 or seqlen.device.type != "cpu":
        raise RuntimeError(f"{name}: seqlen must be int32 on the host, but is {seqlen.dtype} on {seqlen.device}")
    if q_nope.shape[1] != head_num or k_nope.shape[1] != kv_head_num:
        raise RuntimeError(
            f"{name}: expected queries with {head_num} heads and keys with {kv_head_num} heads, but got "
            f"{q_nope.shape[1]} and {k_nope.shape[1]} heads"
        )
    if not first and (pre_out is None or prev_lse is None):
        raise RuntimeError(
            f"{name}: calc_type_default requires pre_out and prev_lse, because the result is merged with them"
        )
    if output is None or softmax_lse is None:
        output = q_nope.new_zeros(q_nope.shape[0], head_num, value.shape[-1])
        softmax_lse = q_nope.new_full((head_num, q_nope.shape[0]), float("-inf"), dtype=torch.float32)
    asked, had = seqlen.tolist() if seqlen.dim() == 2 else (seqlen.tolist(), seqlen.tolist())
    query, key = torch.cat([q_nope, q_rope], -1), torch.cat([k_nope, k_rope], -1)
    at, of = 0, 0
    for rows, columns in zip(asked, had, strict=True):
        mine, its = slice(at, at + rows), slice(of, of + columns)
        at, of = at + rows, of + columns
        if first:
            before, so_far = None, None
        else:
            before, so_far = pre_out[mine], prev_lse[:, mine]  # type: ignore[index]  # checked above
        if columns == 0:
            if before is not None and so_far is not None:
                output[mine], softmax_lse[:, mine] = before, so_far
            continue
        keep = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril(columns - rows)
        q, k, v = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query[mine], key[its], value[its]))
        attention, top, total = attend(q, k, v, How(scale=qk_scale), keep if causal else None)
        made, lse = attention[0].transpose(0, 1), (top[..., 0] + total[..., 0].log())[0]
        if before is not None and so_far is not None:
            together = torch.logaddexp(so_far, lse)
            old, new = ((each - together).exp().t().unsqueeze(-1) for each in (so_far, lse))
            made, lse = (before.float() * old + made.float() * new).to(output.dtype), together
        output[mine], softmax_lse[:, mine] = made, lse
    return output, softmax_lse


def npu_attention_update(
    lse: Sequence[Tensor], local_out: Sequence[Tensor], update_type: int
) -> tuple[Tensor, Tensor]:
    """Merge the attention results for several sets of keys into the attention over all sets. Has no backward pass.

    Shapes: each lse float32 [T*N] (the logarithms of the softmax sums), each local_out [T*N,D] (the attention).

    Returns:
        (attention [T*N,D], lse [T*N]), with the dtypes of the inputs; the lse is empty unless `update_type` is 1.

    Raises:
        RuntimeError: the shapes, dtypes, or numbers of tensors are invalid, or the backward pass is run.
    """
    name = "npu_attention_update"
    if update_type not in (0, 1):
        raise RuntimeError(f"{name}: update_type must be 0 or 1, but is {update_type}")
    if len(lse) != len(local_out) or not 1 <= len(lse) <= 16:
        raise RuntimeError(
            f"{name}: lse and local_out must have the same number of tensors, 1 to 16, but have {len(lse)} and "
            f"{len(local_out)}"
        )
    rows, width = local_out[0].shape if local_out[0].dim() == 2 else (0, 0)
    if not 8 <= width <= 512 or width % 8:
        raise RuntimeError(
            f"{name}: local_out must have shape [T*N,D], where D is a multiple of 8 from 8 to 512, but has shape "
            f"{tuple(local_out[0].shape)}"
        )
    for each, attention in zip(lse, local_out, strict=True):
        if each.shape != (rows,) or each.dtype is not torch.float32:
            raise RuntimeError(
                f"{name}: each lse must be float32 with shape [{rows}], but is {each.dtype} {tuple(each.shape)}"
            )
        if attention.shape != (rows, width) or attention.dtype != local_out[0].dtype:
            raise RuntimeError(f"{name}: each local_out must have the same shape and dtype")
    if local_out[0].dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise RuntimeError(f"{name}: local_out must be float32, float16, or bfloat16, but is {local_out[0].dtype}")

    def compute() -> tuple[Tensor, ...]:
        parts = torch.stack(list(lse))
        total = parts.logsumexp(0)
        shares = (parts - total).exp()
        merged = (torch.stack(list(local_out)).float() * shares[..., None]).sum(0)
        return merged.to(local_out[0].dtype), total if update_type else total.new_empty(0)

    merged, total = without_formula(name, (*lse, *local_out), compute)
    return merged, total


def npu_paged_cache_load(
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    seq_starts: Tensor | None = None,
    cumsum: bool = False,
    key: Tensor | None = None,
    value: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Pack the keys and values of sequences from two paged caches, starting at `seq_starts`, into `key` and `value`,
    or into new tensors if these are not passed.

    Shapes: caches [blocks,block size,N,D], block_table int32 [B, maximum number of blocks], context_lens and
    seq_starts int32 [B], key and value [T,N,D]. If `cumsum` is set, context_lens contains cumulative lengths [B+1].

    Raises:
        RuntimeError: key and value are too small for all tokens.
    """
    name = "npu_paged_cache_load"
    lengths = context_lens.diff().tolist() if cumsum else context_lens.tolist()
    starts = [0] * len(lengths) if seq_starts is None else seq_starts.tolist()
    if key is None or value is None:
        key, value = (cache.new_empty(sum(lengths), *cache.shape[2:]) for cache in (key_cache, value_cache))
    if sum(lengths) > key.shape[0] or key.shape[0] != value.shape[0]:
        raise RuntimeError(
            f"{name}: the sequences have {sum(lengths)} tokens, but key has room for {key.shape[0]} "
            f"and value for {value.shape[0]}"
        )
    size, at = key_cache.shape[1], 0
    for row, start, length in zip(block_table, starts, lengths, strict=True):
        places = torch.arange(start, start + length, device=row.device)
        slots = row[places // size].long() * size + places % size
        for cache, out in ((key_cache, key), (value_cache, value)):
            out[at : at + length] = cache.flatten(0, 1)[slots]
        at += length
    return key, value


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    apart = torch.cat([x[..., ::2], x[..., 1::2]], -1).float()
    first, second = apart.chunk(2, -1)
    return (apart * cos.float() + torch.cat([-second, first], -1) * sin.float()).to(x.dtype)


def _mode(operator: str, argument: str, mode: str, known: tuple[str, ...]) -> str:
    if mode not in known:
        raise RuntimeError(f"{operator}: {argument} must be one of {', '.join(known)}, but is {mode}")
    return mode


def npu_fused_infer_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    block_table: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = UNBOUNDED,
    next_tokens: int = UNBOUNDED,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    softmax_lse_flag: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention for inference, computed in float32. Has no backward pass.

    Shapes: query [B,S,N*D] (BSH), [B,S,N,D] (BSND), [B,N,S,D] (BNSD) or [T,N,D] (TND). The result has the same layout
    or, if `input_layout` contains an underscore, the layout after the underscore: BSND, NBSD, or NTD. Key and value
    have the query's layout. With `block_table` int32 [B, maximum number of blocks], they are a cache [blocks,
    block_size, Nkv*D] or [blocks, Nkv, block_size, D]. `actual_seq_lengths` and `actual_seq_lengths_kv` contain the
    length of each sequence. In TND, they contain cumulative lengths instead, but the lengths of a cache are never
    cumulative. Rows beyond a sequence's length are zeros. `num_key_value_heads=0` means the same number as
    `num_heads`. `query_rope` and `key_rope` are additional columns of query and key.

    Returns:
        (attention; log-sum-exp of the scores, float32 [B,N,S,1], or [T,N,1] in TND). The log-sum-exp is empty unless
        softmax_lse_flag is set.

    Raises:
        RuntimeError: an argument is out of range, or the backward pass is run.
        NotImplementedError: the sparse mode is greater than 4.
    """
    key_heads = num_key_value_heads or num_heads
    if (query_rope is None) != (key_rope is None):
        raise RuntimeError("npu_fused_infer_attention_score: query_rope and key_rope must be passed together")
    layout, result = layouts(input_layout)
    _check(sparse_mode, num_heads, key_heads)
    if query.dim() != (3 if layout in ("BSH", "TND") else 4):
        raise RuntimeError(
            f"npu_fused_infer_attention_score: query has {query.dim()} dimensions, which does not "
            f"match the layout {input_layout}"
        )
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


npu_fused_infer_attention_score_v2 = renamed(
    npu_fused_infer_attention_score,
    {
        "actual_seq_lengths": "actual_seq_qlen",
        "actual_seq_lengths_kv": "actual_seq_kvlen",
        "num_heads": "num_query_heads",
        "scale": "softmax_scale",
        "softmax_lse_flag": "return_softmax_lse",
    },
)


def _into_tensors_of_caller(name: str, operator: Callable[..., Any]) -> Callable[..., object]:
    """Return the overload of an operator that writes the results into the caller's tensors. Graph updates require this
    overload. It raises RuntimeError if `out` does not consist of two tensors, or if the first tensor does not have the
    size of the result."""

    def call(*, workspace: Tensor | None = None, out: list[Tensor], **given: Any) -> tuple[Tensor, Tensor]:
        results = operator(**given)
        if len(out) != 2:
            raise RuntimeError(f"out must have 2 tensors (attention_out, softmax_lse), but has {len(out)}")
        for place, result in zip(out, results, strict=True):
            # If the log-sum-exp was not requested, it is empty, and nothing is written to it.
            if result.numel() == 0:
                continue
            if place.numel() != result.numel() or place.dtype != result.dtype:
                raise RuntimeError(
                    f"{name}.out: expected a tensor with dtype {result.dtype} and shape {tuple(result.shape)}, but "
                    f"got dtype {place.dtype} and shape {tuple(place.shape)}"
                )
            # The kernel also writes its own layout into that memory.
            place.view(-1).copy_(result.reshape(-1))
        return out[0], out[1]

    return with_signature_of(operator, call, "workspace", "out")


npu_fused_infer_attention_score_out = _into_tensors_of_caller(
    "npu_fused_infer_attention_score", npu_fused_infer_attention_score
)
npu_fused_infer_attention_score_v2_out = _into_tensors_of_caller(
    "npu_fused_infer_attention_score_v2", npu_fused_infer_attention_score_v2
)


def workspace_of(query: Tensor, **_given: object) -> Tensor:
    """Return a workspace tensor for the intermediate results of a call. A virtual NPU has no intermediate results, so
    the size of the workspace is arbitrary."""
    return query.new_empty(512, dtype=torch.uint8)


_npu_fused_infer_attention_score_get_max_workspace = with_signature_of(npu_fused_infer_attention_score, workspace_of)
_npu_fused_infer_attention_score_v2_get_max_workspace = with_signature_of(
    npu_fused_infer_attention_score_v2, workspace_of
)


def _check(mode: int, heads: int, key_heads: int) -> None:
    name = "npu_fused_infer_attention_score"
    if not 0 <= mode <= 4:
        raise NotImplementedError(f"{name}: virtual-ascend implements only sparse_mode 0 to 4, but got {mode}")
    if heads <= 0:
        raise RuntimeError(f"{name}: num_heads must be greater than 0, but is {heads}")
    if heads % key_heads:
        raise RuntimeError(f"{name}: num_heads ({heads}) must be a multiple of num_key_value_heads ({key_heads})")


def _each(
    queries: Sequence[Tensor], keys: Sequence[Tensor], values: Sequence[Tensor], rule: Rule, scale: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the attention of each sequence [N,S,D], and the log-sum-exp of its scores [N,S,1]."""
    if not len(queries) == len(keys) == len(values):
        raise RuntimeError(
            f"npu_fused_infer_attention_score: query has {len(queries)} sequences, but key has {len(keys)} and "
            f"value has {len(values)}"
        )
    outs, lses = [], []
    for number, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        if not k.shape[1]:  # Engines pad a graph's batch with empty sequences, for which the kernel writes zeros.
            outs.append(q.new_zeros(*q.shape[:-1], v.shape[-1]))
            lses.append(q.new_full((*q.shape[:-1], 1), float("-inf"), dtype=torch.float32))
            continue
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
        # As documented, a single query has no sparse mode, and its mask covers all keys.
        kind = SparseMode.ALL
        if mask is not None and tuple(mask.shape[-2:]) == (2048, 2048):
            mask = None
    if mask is not None and kind in (SparseMode.DEFAULT, SparseMode.ALL):
        mask = mask[..., :rows, :columns]
    return Rule(kind, mask, rule.before, rule.after)
