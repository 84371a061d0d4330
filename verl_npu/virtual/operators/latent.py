"""Multi-head latent attention for inference: op-plugin, docs/zh/custom_APIs/torch_npu/,
torch_npu-npu_interleave_rope.md and torch_npu-npu_kv_rmsnorm_rope_cache.md; for those of ATB, op_plugin/ops/atb/,
RingMlaAtb.cpp and PagedCacheLoadAtb.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from .gradient import without_formula
from .halves import check_half
from .scores import How, attend

__all__ = [
    "npu_interleave_rope",
    "npu_kv_rmsnorm_rope_cache",
    "npu_paged_cache_load",
    "npu_paged_cache_load_out",
    "npu_ring_mla",
    "npu_ring_mla_out",
]

_ROPE, _LATENT = 64, 512
_KERNELS = ("kernel_type_default", "kernel_type_high_precision")
_MASKS, _CALCULATIONS = ("no_mask", "mask_type_triu"), ("calc_type_default", "calc_type_first_ring")


def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Put the pairs of x apart, the first of each and then the second, and rotate it; no gradient.

    Shapes: x [B,N,S,64], cos and sin [B,1,S or 1,64] -> [B,N,S,64].

    Raises:
        RuntimeError: wrong shapes or dtypes, and in backward.
    """
    name = "npu_interleave_rope"
    for what, tensor in (("x", x), ("cos", cos), ("sin", sin)):
        check_half(name, what, tensor)
        if tensor.dim() != 4 or tensor.shape[-1] != _ROPE:
            raise RuntimeError(f"{name}: {what} must be [B,N,S,{_ROPE}], but is {tuple(tensor.shape)}")
    if cos.shape != sin.shape or cos.shape[1] != 1 or cos.shape[2] not in (1, x.shape[2]):
        raise RuntimeError(
            f"{name}: cos and sin must be [B,1,S or 1,{_ROPE}], but are {tuple(cos.shape)} and {tuple(sin.shape)}"
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
    k_rope_scale: Tensor | None = None,
    c_kv_scale: Tensor | None = None,
    k_rope_offset: Tensor | None = None,
    c_kv_offset: Tensor | None = None,
    v: Tensor | None = None,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Norm the latent part of kv, rotate the rest as `npu_interleave_rope` does, and write both into paged caches; a
    negative slot is left out.

    Shapes: kv [B,1,S,576], gamma [512], cos and sin [B,1,S,64], index int64 [B*S] (slots), k_cache
    [blocks,block size,1,64], ckv_cache [blocks,block size,1,512].

    Returns:
        (k_cache, ckv_cache, the rotated part [B,1,S,64], the normed one [B,1,S,512]); the last two are empty without
        is_output_kv.

    Raises:
        RuntimeError: wrong shapes or dtypes.
        NotImplementedError: quantisation, v, cache modes other than PA and PA_BNSD.
    """
    name = "npu_kv_rmsnorm_rope_cache"
    if any(each is not None for each in (k_rope_scale, c_kv_scale, k_rope_offset, c_kv_offset, v)):
        raise NotImplementedError(f"{name}: quantisation and a separate v are not implemented by the virtual Ascend")
    if cache_mode not in ("PA", "PA_BNSD"):
        raise NotImplementedError(f"{name}: cache_mode {cache_mode} is not implemented by the virtual Ascend")
    check_half(name, "kv", kv)
    if kv.dim() != 4 or kv.shape[1] != 1 or kv.shape[-1] != _LATENT + _ROPE:
        raise RuntimeError(f"{name}: kv must be [B,1,S,{_LATENT + _ROPE}], but is {tuple(kv.shape)}")
    if gamma.dim() != 1:
        raise RuntimeError(f"{name}: gamma must be [{_LATENT}], but is {tuple(gamma.shape)}")
    for what, tensor in (("cos", cos), ("sin", sin)):
        if tensor.dim() != 4:
            raise RuntimeError(f"{name}: {what} must be [B,1,S,{_ROPE}], but is {tuple(tensor.shape)}")
    if index.dtype != torch.int64 or index.numel() != kv.shape[0] * kv.shape[2]:
        raise RuntimeError(
            f"{name}: index must be int64 [{kv.shape[0] * kv.shape[2]}], but is {index.dtype} {tuple(index.shape)}"
        )
    for what, cache, width in (("k_cache", k_cache, _ROPE), ("ckv_cache", ckv_cache, _LATENT)):
        if cache.dim() != 4 or tuple(cache.shape[2:]) != (1, width) or cache.dtype != kv.dtype:
            raise RuntimeError(
                f"{name}: {what} must be [blocks,block size,1,{width}] in {kv.dtype}, but is {tuple(cache.shape)} in "
                f"{cache.dtype}"
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
) -> tuple[Tensor, Tensor]:
    """`npu_ring_mla_out` into new tensors, which it returns."""
    given = dict(locals())
    output = q_nope.new_zeros(q_nope.shape[0], head_num, value.shape[-1])
    lse = q_nope.new_full((head_num, q_nope.shape[0]), float("-inf"), dtype=torch.float32)
    return npu_ring_mla_out(**given, output=output, softmax_lse=lse)


def npu_ring_mla_out(
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
    output: Tensor,
    softmax_lse: Tensor,
) -> tuple[Tensor, Tensor]:
    """Attention of packed sequences, added to what they have attended to before unless it is the first ring.

    Shapes: q_nope [T,N,128], q_rope [T,N,64], k_nope [L,Nkv,128], k_rope [L,Nkv,64], value [L,Nkv,Dv], seqlen int32
    [B] or [2,B] (of queries and of keys) on the host, pre_out and output [T,N,Dv], prev_lse and softmax_lse float32
    [N,T]. The mask is a template of which mask_type_triu takes the causal meaning.

    Raises:
        RuntimeError: wrong shapes or dtypes, or a mode that there is not.
    """
    name = "npu_ring_mla"
    causal = _mode(name, "mask_type", mask_type or "no_mask", _MASKS) == "mask_type_triu"
    first = _mode(name, "calc_type", calc_type or "calc_type_first_ring", _CALCULATIONS) == "calc_type_first_ring"
    _mode(name, "input_layout", input_layout or "type_bsnd", ("type_bsnd",))
    _mode(
        name,
        "kernel_type",
        kernel_type or "kernel_type_default",
        ("kernel_type_default", "kernel_type_high_precision"),
    )
    check_half(name, "q_nope", q_nope)
    if seqlen.dtype != torch.int32 or seqlen.device.type != "cpu":
        raise RuntimeError(f"{name}: seqlen must be int32 on the host, but is {seqlen.dtype} on {seqlen.device}")
    if q_nope.shape[1] != head_num or k_nope.shape[1] != kv_head_num:
        raise RuntimeError(
            f"{name}: expected {head_num} heads of queries and {kv_head_num} of keys, but got {q_nope.shape[1]} and "
            f"{k_nope.shape[1]}"
        )
    if not first and (pre_out is None or prev_lse is None):
        raise RuntimeError(f"{name}: calc_type_default adds to pre_out and prev_lse, but got none")
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


def npu_paged_cache_load(
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    seq_starts: Tensor | None = None,
    cumsum: bool = False,
) -> tuple[Tensor, Tensor]:
    """`npu_paged_cache_load_out` into new tensors, which it returns."""
    given = dict(locals())
    total = int(context_lens[-1] if cumsum else context_lens.sum())
    key, value = (cache.new_empty(total, *cache.shape[2:]) for cache in (key_cache, value_cache))
    return npu_paged_cache_load_out(**given, key=key, value=value)


def npu_paged_cache_load_out(
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    seq_starts: Tensor | None = None,
    cumsum: bool = False,
    key: Tensor,
    value: Tensor,
) -> tuple[Tensor, Tensor]:
    """Pack what sequences have in two paged caches, from `seq_starts` on.

    Shapes: caches [blocks,block size,N,D], block_table int32 [B, most blocks], context_lens and seq_starts int32 [B],
    key and value [T,N,D]. `cumsum`: context_lens holds the ends [B+1].

    Raises:
        RuntimeError: more tokens than there is room for.
    """
    name = "npu_paged_cache_load"
    lengths = context_lens.diff().tolist() if cumsum else context_lens.tolist()
    starts = [0] * len(lengths) if seq_starts is None else seq_starts.tolist()
    if sum(lengths) > key.shape[0] or key.shape[0] != value.shape[0]:
        raise RuntimeError(f"{name}: {sum(lengths)} tokens, but room for {key.shape[0]} and {value.shape[0]}")
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
