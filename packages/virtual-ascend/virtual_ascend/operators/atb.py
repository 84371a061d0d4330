"""The operators of ATB, the library of inference kernels, under `torch.ops.atb`: op-plugin, op_plugin/ops/atb/.

They write into tensors of the caller and have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from . import inference
from .attention import How, attend, check_half

_TEMPLATE = 128
"""The side of the mask that `_npu_flash_attention_qlens` repeats along the diagonal."""


def _npu_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: Tensor,
) -> None:
    """Self-attention of packed sequences. A float16 mask is added to the scores. Any other mask is 1 for each masked
    score.

    Shapes: query [T,N,D], key [T,Nkv,D], value [T,Nkv,Dv] and out [T,N,Dv], mask [L,L], or [B,L,L] with one mask for
    each sequence, where L is the longest sequence, seq_len int32 [B] on the host.

    Raises:
        RuntimeError: shapes or dtypes do not match.
    """
    name = "_npu_flash_attention"
    lengths = _lengths(name, "seq_len", seq_len)
    _check_attention(name, query, (key, value), out, num_heads, num_kv_heads)
    _check_tokens(name, query, lengths)
    for number, rows in _rows(lengths):
        length = lengths[number]
        if min(mask.shape[-2:]) < length:
            raise RuntimeError(f"{name}: mask {tuple(mask.shape)} is smaller than a sequence of {length} tokens")
        own = (mask if mask.dim() == 2 else mask[number].squeeze(0))[:length, :length]
        out[rows] = _one(query[rows], key[rows], value[rows], scale_value, own)


def _npu_flash_attention_unpad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seq_len: Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: Tensor,
) -> None:
    """Self-attention of packed sequences without a mask, as in a vision tower.

    Shapes: query and out [T,N,D], key and value [T,Nkv,D], seq_len int32 [B] on the host.

    Raises:
        RuntimeError: shapes or dtypes do not match.
    """
    name = "_npu_flash_attention_unpad"
    lengths = _lengths(name, "seq_len", seq_len)
    _check_attention(name, query, (key, value), out, num_heads, num_kv_heads)
    _check_tokens(name, query, lengths)
    for _, rows in _rows(lengths):
        out[rows] = _one(query[rows], key[rows], value[rows], scale_value, None)


def _npu_flash_attention_qlens(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    context_lens: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: Tensor,
) -> None:
    """Attention of the last tokens of each sequence to its paged cache, causal from the bottom right corner.

    Shapes: query and out [T,N,D], caches [blocks, block size, Nkv, D], block_table int32 [B, maximum number of
    blocks], seq_len and context_lens int32 [B] on the host: the number of tokens of each sequence in query, and the
    total number of tokens of each sequence. The mask is a causal template of 128 x 128, whose upper triangle is
    masked.

    Raises:
        RuntimeError: shapes or dtypes do not match, or the mask is not the causal template.
    """
    name = "_npu_flash_attention_qlens"
    asked, lengths = _lengths(name, "seq_len", seq_len), _lengths(name, "context_lens", context_lens)
    _check_attention(name, query, (key_cache, value_cache), out, num_heads, num_kv_heads)
    if tuple(mask.shape[-2:]) != (_TEMPLATE, _TEMPLATE):
        raise RuntimeError(f"{name}: mask must be {_TEMPLATE} x {_TEMPLATE}, but is {tuple(mask.shape)}")
    if not torch.equal(mask.reshape(_TEMPLATE, _TEMPLATE) != 0, _above(_TEMPLATE, _TEMPLATE, 0, mask.device)):
        raise RuntimeError(f"{name}: mask must be a causal attention mask, with the upper triangle set")
    for rows, keys, values in _last_tokens(name, (key_cache, value_cache), block_table, asked, lengths):
        queries, length = rows.stop - rows.start, len(keys)
        above = _above(queries, length, length - queries, query.device)
        out[rows] = _one(query[rows], keys, values, scale_value, above)


def _npu_paged_attention_get_workspace(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    out: Tensor,
) -> Tensor:
    """Return the memory that `_npu_paged_attention` accepts as `workspace`."""
    return inference.workspace_of(query)


def _npu_paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    out: Tensor,
    *,
    workspace: Tensor | None = None,
) -> None:
    """Attention of one token of each sequence to its paged cache.

    Shapes: query and out [B,N,D], caches [blocks, block size, Nkv, D], block_table int32 [B, maximum number of
    blocks], context_lens int32 [B] on the host.

    Raises:
        RuntimeError: shapes or dtypes do not match.
    """
    name = "_npu_paged_attention"
    lengths = _lengths(name, "context_lens", context_lens)
    _check_attention(name, query, (key_cache, value_cache), out, num_heads, num_kv_heads)
    if len(lengths) > query.shape[0]:
        raise RuntimeError(f"{name}: there are {len(lengths)} lengths, but query has only {query.shape[0]} tokens")
    for number, length in enumerate(lengths):
        keys = _paged(name, key_cache, block_table, number, length)
        values = _paged(name, value_cache, block_table, number, length)
        row = slice(number, number + 1)
        out[row] = _one(query[row], keys, values, scale_value, None)


def _npu_paged_attention_mla(
    query: Tensor,
    key_cache: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    mla_vheadsize: int,
    out: Tensor,
) -> None:
    """Attention of one token of each sequence to its paged cache of latents, whose first columns are the values.

    Shapes: query [B,N,D], key_cache [blocks, block size, Nkv, D], out [B,N,mla_vheadsize], block_table int32 [B,
    maximum number of blocks], context_lens int32 [B] on the host.

    Raises:
        RuntimeError: shapes or dtypes do not match.
    """
    if not 0 < mla_vheadsize <= key_cache.shape[-1]:
        raise RuntimeError(
            f"_npu_paged_attention_mla: mla_vheadsize={mla_vheadsize} is out of range for keys of the size "
            f"{key_cache.shape[-1]}"
        )
    values = key_cache[..., :mla_vheadsize]
    _npu_paged_attention(
        query, key_cache, values, num_kv_heads, num_heads, scale_value, block_table, context_lens, out
    )


def _npu_paged_attention_splitfuse(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: Tensor,
) -> None:
    """Attention of the last tokens of each sequence to its paged cache, for partial prompts and answers in one call.

    Shapes: query and out [T,N,D], caches [blocks, block size, Nkv, D], block_table int32 [B, maximum number of
    blocks], seq_len and context_lens int32 [B] on the host: the number of tokens of each sequence in query, and the
    total number of tokens of each sequence. The mask [T, longest sequence] is added to the scores in every dtype:
    callers pass -10000 where they pass 1 to `_npu_flash_attention` (vllm-ascend,
    AttentionMaskBuilder.get_splitfuse_attn_mask).

    Raises:
        RuntimeError: shapes or dtypes do not match.
    """
    name = "_npu_paged_attention_splitfuse"
    asked, lengths = _lengths(name, "seq_len", seq_len), _lengths(name, "context_lens", context_lens)
    _check_attention(name, query, (key_cache, value_cache), out, num_heads, num_kv_heads)
    _check_tokens(name, query, asked)
    if mask.dim() != 2 or mask.shape[0] < sum(asked) or mask.shape[1] < max(lengths, default=0):
        raise RuntimeError(
            f"{name}: expected a mask of {sum(asked)} tokens by {max(lengths, default=0)}, but got {tuple(mask.shape)}"
        )
    for rows, keys, values in _last_tokens(name, (key_cache, value_cache), block_table, asked, lengths):
        out[rows] = _one(query[rows], keys, values, scale_value, mask[rows, : len(keys)], added=True)


def _npu_rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox_style: bool
) -> None:
    """Rotate query and key in place by their positions.

    Shapes: positions int64 [T], query [T,N*R] and key [T,Nkv*R], cos_sin_cache [positions, R]: cosines, then sines.

    Raises:
        RuntimeError: a width is not a multiple of the rotated part.
    """
    name = "_npu_rotary_embedding"
    rotated = cos_sin_cache.shape[-1]
    cos, sin = (part.unsqueeze(1).float() for part in cos_sin_cache.index_select(0, positions.flatten()).chunk(2, -1))
    for what, tensor in (("query", query), ("key", key)):
        check_half(name, what, tensor)
        if tensor.dim() != 2 or tensor.shape[-1] % rotated:
            raise RuntimeError(f"{name}: {what} must be [tokens, heads * {rotated}], but is {tuple(tensor.shape)}")
        heads = tensor.view(tensor.shape[0], -1, rotated)
        first, second = (
            heads.float().chunk(2, -1) if is_neox_style else (heads[..., ::2].float(), heads[..., 1::2].float())
        )
        turned = (first * cos - second * sin, second * cos + first * sin)
        heads.copy_(torch.cat(turned, -1) if is_neox_style else torch.stack(turned, -1).flatten(-2))


def _npu_matmul_add_fp32(x: Tensor, weight: Tensor, C: Tensor) -> None:
    """Add `x.t() @ weight` to C in float32.

    Shapes: x [T,K], weight [T,N], C float32 [K,N].

    Raises:
        RuntimeError: C has another dtype or shape.
    """
    if C.dtype != torch.float32 or tuple(C.shape) != (x.shape[-1], weight.shape[-1]):
        raise RuntimeError(
            f"_npu_matmul_add_fp32: C must have dtype float32 and shape [{x.shape[-1]},{weight.shape[-1]}], but has "
            f"dtype {C.dtype} and shape {tuple(C.shape)}"
        )
    C.add_(x.float().t() @ weight.float())


def _one(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, *, added: bool = False
) -> Tensor:
    """One sequence's attention: query [S,N,D], key and value [L,Nkv,D], mask [S,L] -> [S,N,D].

    A float16 mask is always added to the scores. A mask of another dtype is added only if `added` is set.
    """
    queries, keys, values = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))
    bias = keep = None
    if mask is not None and (added or mask.dtype == torch.float16):
        # `attend` also multiplies the bias by the scale.
        bias = mask.float() / scale
    elif mask is not None:
        keep = mask == 0
    attention, _, _ = attend(queries, keys, values, How(scale=scale, pse=bias), keep)
    return attention.squeeze(0).transpose(0, 1)


def _rows(lengths: list[int]) -> Iterator[tuple[int, slice]]:
    start = 0
    for number, length in enumerate(lengths):
        yield number, slice(start, start + length)
        start += length


def _last_tokens(
    name: str, caches: tuple[Tensor, Tensor], table: Tensor, asked: list[int], lengths: list[int]
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield for each sequence the rows of its last tokens in query, and all its keys and values from the caches."""
    for number, rows in _rows(asked):
        queries, length = asked[number], lengths[number]
        if queries > length:
            raise RuntimeError(
                f"{name}: sequence {number} has {length} tokens, but query has {queries} tokens of this sequence"
            )
        keys, values = (_paged(name, cache, table, number, length) for cache in caches)
        yield rows, keys, values


def _above(rows: int, columns: int, shift: int, device: torch.device) -> Tensor:
    return torch.ones(rows, columns, dtype=torch.bool, device=device).triu(shift + 1)


def _lengths(name: str, what: str, lengths: Tensor) -> list[int]:
    if lengths.dtype != torch.int32:
        raise RuntimeError(f"{name}: {what} must be int32, but is {lengths.dtype}")
    return [int(length) for length in lengths.tolist()]


def _paged(name: str, cache: Tensor, table: Tensor, number: int, length: int) -> Tensor:
    """Return the first `length` tokens of a sequence, from its blocks: [length,Nkv,D]."""
    size = cache.shape[1]
    blocks = -(-length // size)
    if table.dtype != torch.int32:
        raise RuntimeError(f"{name}: block_table must be int32, but is {table.dtype}")
    if table.dim() != 2 or number >= table.shape[0] or blocks > table.shape[1]:
        raise RuntimeError(
            f"{name}: sequence {number} has {length} tokens and needs {blocks} blocks of {size}, but block_table "
            f"has the shape "
            f"{tuple(table.shape)}"
        )
    return cache[table[number, :blocks].long()].flatten(0, 1)[:length]


def _check_tokens(name: str, query: Tensor, lengths: list[int]) -> None:
    if sum(lengths) > query.shape[0]:
        raise RuntimeError(f"{name}: the sequences have {sum(lengths)} tokens, but query has {query.shape[0]}")


def _check_attention(
    name: str, query: Tensor, keys: tuple[Tensor, Tensor], out: Tensor, heads: int, key_heads: int
) -> None:
    for what, tensor in (("query", query), ("key", keys[0]), ("value", keys[1]), ("out", out)):
        check_half(name, what, tensor)
        if tensor.dtype != query.dtype:
            raise RuntimeError(
                f"{name}: query and {what} must have the same dtype, but query is {query.dtype}, and {what} is "
                f"{tensor.dtype}"
            )
    # DeepSeek's values are narrower than its keys, and so is the result.
    made = (*query.shape[:-1], keys[1].shape[-1])
    if query.dim() != 3 or query.shape[1] != heads or keys[0].shape[-2] != key_heads or tuple(out.shape) != made:
        raise RuntimeError(
            f"{name}: expected query and out [tokens,{heads},size] and keys with {key_heads} heads, but got the "
            f"shapes "
            f"{tuple(query.shape)}, {tuple(out.shape)} and {tuple(keys[0].shape)}"
        )


OPERATORS: Mapping[str, Callable[..., object]] = {
    **{
        function.__name__: function
        for function in (
            _npu_flash_attention,
            _npu_flash_attention_qlens,
            _npu_flash_attention_unpad,
            _npu_matmul_add_fp32,
            _npu_paged_attention,
            _npu_paged_attention_mla,
            _npu_paged_attention_splitfuse,
            _npu_paged_attention_get_workspace,
            inference._npu_reshape_and_cache,
            inference._npu_reshape_and_cache_siso,
            _npu_rotary_embedding,
            inference.npu_paged_cache_load,
            inference.npu_ring_mla,
        )
    },
    "npu_paged_cache_load.out": inference.npu_paged_cache_load,
    "npu_ring_mla.out": inference.npu_ring_mla,
}
"""The implemented operators, by their names and overloads."""

HOST: Mapping[str, tuple[str, ...]] = {
    "_npu_flash_attention": ("seq_len",),
    "_npu_flash_attention_qlens": ("seq_len", "context_lens"),
    "_npu_flash_attention_unpad": ("seq_len",),
    "_npu_paged_attention": ("context_lens",),
    "_npu_paged_attention_get_workspace": ("context_lens",),
    "_npu_paged_attention_mla": ("context_lens",),
    "_npu_paged_attention_splitfuse": ("seq_len", "context_lens"),
    "npu_ring_mla": ("seqlen",),
    "npu_ring_mla.out": ("seqlen",),
}
"""The arguments of each operator that are read on the host. They are lengths."""
