"""Attention for training: sparse modes and masks, layouts, the arithmetic on scores, and the operators.

Some code is shared with attention for inference: the split of a batch into its sequences, and the check of dtypes. A
real NPU accepts float16 and bfloat16. virtual-ascend also accepts float32, with one warning, so that the tokens of a
rollout can be compared with transformers'.

torch's scaled_dot_product_attention on NPUs is npu_fusion_attention where possible: op-plugin,
op_plugin/ops/opapi/ScaledDotProductAttentionKernelNpuOpApi.cpp.

npu_fusion_attention: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_fusion_attention.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum

import torch
from torch import Tensor
from torch.nn import functional

from .fused import Result, flops_of, fused, is_fusible

UNBOUNDED = 2147483647
TEMPLATE = 2048  # the side of the mask of compressed modes


class SparseMode(IntEnum):
    """The mode, which selects the scores to keep. i is the row of the query, and j is the column of the key."""

    DEFAULT = 0  # not masked, j-i <= next_tockens and i-j <= pre_tockens
    ALL = 1  # not masked
    LEFT_UP_CAUSAL = 2  # j <= i
    RIGHT_DOWN_CAUSAL = 3  # j <= i + Skv-Sq
    BAND = 4  # like DEFAULT, but counted from the bottom right corner
    PREFIX = 5  # RIGHT_DOWN_CAUSAL or j < prefix, with a full mask
    PREFIX_COMPRESSED = 6  # PREFIX with a template
    VARLEN_OUTER_CUT = 7  # BAND for the last sequence, RIGHT_DOWN_CAUSAL for the others
    VARLEN_INNER_CUT = 8  # BAND for the first sequence, LEFT_UP_CAUSAL for the others


_PREFIXED = (SparseMode.PREFIX, SparseMode.PREFIX_COMPRESSED)
_GIVEN = (SparseMode.DEFAULT, SparseMode.ALL, SparseMode.PREFIX)  # modes with a full mask and not a template
_TEMPLATES = {SparseMode.PREFIX_COMPRESSED: (3072, 2048)}


@dataclass(frozen=True, slots=True)
class Rule:
    """The masking rule of an attention call. It does not depend on the size of the block that it is applied to."""

    mode: SparseMode
    mask: Tensor | None
    before: int
    after: int
    prefix: Sequence[int] | None = None

    def of_sequence(self, number: int, count: int, rows: int, columns: int) -> Rule:
        """Return the masking rule for one sequence of a packed batch."""
        mode = self.mode
        if mode is SparseMode.VARLEN_OUTER_CUT:
            mode = SparseMode.BAND if number == count - 1 else SparseMode.RIGHT_DOWN_CAUSAL
        elif mode is SparseMode.VARLEN_INNER_CUT:
            mode = SparseMode.BAND if number == 0 else SparseMode.LEFT_UP_CAUSAL
        mask = self.mask
        if mask is not None and mode in _GIVEN:
            mask = mask[:rows, :columns]
        prefix = None if self.prefix is None else self.prefix[number : number + 1]
        return Rule(mode, mask, self.before, self.after, prefix)

    def keep(self, rows: int, columns: int, device: torch.device) -> Tensor | None:
        """Return a mask, bool [.., rows, columns], that is True for each score that is kept, or None if all scores are
        kept.

        If the call has no mask, the sparse mode is ignored. Even in a causal mode, rows then attend to later columns.
        This is the documented behavior.
        """
        if self.mask is None:
            return None
        given = ~self.mask.bool()
        if self.mode is SparseMode.ALL:
            return given
        i = torch.arange(rows, device=device).unsqueeze(1)
        j = torch.arange(columns, device=device).unsqueeze(0)
        shift = columns - rows
        if self.mode is SparseMode.DEFAULT:
            if self.before >= rows and self.after >= columns:
                return given
            return given & (j - i <= self.after) & (i - j <= self.before)
        if self.mode in _PREFIXED and self.prefix is not None:
            lengths = torch.tensor(list(self.prefix), device=device).view(-1, 1, 1, 1)
            kept = (j <= i + shift) | (j < lengths)
            return kept & given if self.mode is SparseMode.PREFIX else kept
        # The remaining modes have a template, whose content the mode implies.
        if self.mode is SparseMode.LEFT_UP_CAUSAL:
            return j <= i
        if self.mode is SparseMode.RIGHT_DOWN_CAUSAL:
            return j <= i + shift
        return (j - i - shift <= self.after) & (i + shift - j <= self.before)


def rule_of(
    number: int, mask: Tensor | None, before: int, after: int, prefix: Sequence[int] | None, *, packed: bool
) -> Rule:
    """Return the masking rule that the arguments of a call describe.

    Raises:
        RuntimeError: the sparse mode does not exist or does not support packed batches (TND), or the mask does not
            match the mode.
    """
    rule = Rule(_mode(number, packed), mask, int(before), int(after), prefix)
    _check_mask(rule, packed)
    return rule


def _mode(number: int, packed: bool) -> SparseMode:
    last = 8 if packed else 6
    if not 0 <= number <= last or (packed and number == 5):
        expected = "[0,5) or (5,8]" if packed else "[0,6]"
        raise RuntimeError(
            f"npu_fusion_attention: the sparse_mode value must be in range of {expected}, but got {number}"
        )
    return SparseMode(number)


def _check_mask(rule: Rule, packed: bool) -> None:
    mask = rule.mask
    if mask is None:
        return
    if mask.dtype not in (torch.bool, torch.uint8):
        raise RuntimeError(f"npu_fusion_attention: atten_mask must be bool or uint8, but is {mask.dtype}")
    template = _TEMPLATES.get(rule.mode, (TEMPLATE, TEMPLATE))
    if rule.mode not in _GIVEN and tuple(mask.shape[-2:]) != template:
        raise RuntimeError(
            f"npu_fusion_attention: sparse_mode {int(rule.mode)} requires an atten_mask of shape "
            f"{template[0]}x{template[1]}, but got shape {tuple(mask.shape)}"
        )
    if packed and mask.dim() != 2:
        raise RuntimeError(
            f"npu_fusion_attention: in the TND layout, atten_mask must have 2 dimensions, but has {mask.dim()}"
        )


def check_prefix(rule: Rule, sequences: int) -> None:
    """Raise RuntimeError if a prefix mode is requested for more than 32 sequences, or without exactly one prefix for
    each sequence."""
    if rule.mode not in _PREFIXED or rule.mask is None:
        return
    if rule.prefix is None or len(rule.prefix) != sequences or sequences > 32:
        found = "no prefixes" if rule.prefix is None else f"{len(rule.prefix)} prefixes"
        raise RuntimeError(
            f"npu_fusion_attention: sparse_mode {int(rule.mode)} requires one prefix for each sequence, and at most "
            f"32 sequences, but got {found} for {sequences} sequences"
        )


@dataclass(frozen=True, slots=True)
class How:
    """The modifications of the attention scores: scale, dropout, shift (pse), and sink."""

    scale: float
    keep_prob: float = 1.0
    pse: Tensor | None = None
    sink: Tensor | None = None


def check_heads(heads: int, key_heads: int) -> None:
    """Raise RuntimeError unless the number of query heads is a multiple of the number of key heads."""
    if heads % key_heads:
        raise RuntimeError(
            f"npu_fusion_attention: the number of query heads ({heads}) must be a multiple of the number of key heads "
            f"({key_heads})"
        )


def attend(query: Tensor, key: Tensor, value: Tensor, how: How, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Compute attention: query [B,N,Sq,D], key and value [B,Nkv,Skv,D] -> [B,N,Sq,D], row maximum and sum
    [B,N,Sq,8]."""
    heads, key_heads = query.shape[1], key.shape[1]
    check_heads(heads, key_heads)
    if heads != key_heads:
        key = key.repeat_interleave(heads // key_heads, dim=1)
        value = value.repeat_interleave(heads // key_heads, dim=1)
    scores = _scores(query.float(), key.float(), how, keep)
    sink = None if how.sink is None else how.sink.view(1, -1, 1, 1)
    with torch.no_grad():
        top = scores.amax(dim=-1, keepdim=True)
        if sink is not None:
            top = torch.maximum(top, sink)
        top = top.masked_fill(top == float("-inf"), 0.0)
    weights = torch.exp(scores - top)
    total = weights.sum(dim=-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - top)
    weights = weights / total.clamp_min(torch.finfo(torch.float32).tiny)  # a fully masked row gives zeros, not NaN
    if how.keep_prob < 1:
        weights = functional.dropout(weights, 1 - how.keep_prob)
    out = torch.matmul(weights, value.float()).to(query.dtype)
    return out, top.expand(*top.shape[:-1], 8), total.detach().expand(*total.shape[:-1], 8)


def through(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gradient: Tensor,
    attention: Tensor,
    top: Tensor,
    total: Tensor,
    how: How,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the backward pass of `attend`: return the gradients for query, key, value, pse, and sink. The gradients
    for pse and sink are empty if pse and sink were not passed.

    `attention` [B,N,Sq,D] is the result of `attend`. `top` and `total` [B,N,Sq,1] are the row maximum and the row sum.
    """
    shared = query.shape[1] // key.shape[1]
    q, grad = query.float(), gradient.float()
    k, v = (tensor.float().repeat_interleave(shared, dim=1) for tensor in (key, value))
    weights = torch.exp(_scores(q, k, how, keep) - top) / total.clamp_min(torch.finfo(torch.float32).tiny)
    along = (grad * attention.float()).sum(-1, keepdim=True)
    to_scores = weights * (torch.matmul(grad, v.transpose(-1, -2)) - along)

    def by_key(tensor: Tensor) -> Tensor:
        return tensor.unflatten(1, (-1, shared)).sum(2)

    dq = torch.matmul(to_scores, k) * how.scale
    dk = by_key(torch.matmul(to_scores.transpose(-1, -2), q) * how.scale)
    dv = by_key(torch.matmul(weights.transpose(-1, -2), grad))
    dpse, dsink = query.new_empty(0), query.new_empty(0)
    if how.pse is not None:
        dpse = (to_scores * how.scale).sum_to_size(how.pse.shape).to(how.pse.dtype)
    if how.sink is not None:
        dsink = -(torch.exp(how.sink.view(1, -1, 1, 1) - top) / total * along).sum((0, 2, 3))
    return dq.to(query.dtype), dk.to(key.dtype), dv.to(value.dtype), dpse, dsink


def _scores(query: Tensor, key: Tensor, how: How, keep: Tensor | None) -> Tensor:
    scores = torch.matmul(query * how.scale, key.transpose(-1, -2))
    if how.pse is not None:
        scores = scores + how.pse.float() * how.scale
    return scores if keep is None else scores.masked_fill(~keep, float("-inf"))


class Layout(Enum):
    """The order of the dimensions: B batch, S sequence, N heads, D head size, H = N*D, T all tokens of a packed
    batch."""

    BSH = "BSH"
    SBH = "SBH"
    BSND = "BSND"
    BNSD = "BNSD"
    TND = "TND"


def layout_of(name: str) -> Layout:
    """Return the layout called `name`. Raise RuntimeError if the layout does not exist."""
    try:
        return Layout(name)
    except ValueError:
        expected = "/".join(layout.value for layout in Layout)
        raise RuntimeError(f"npu_fusion_attention: input_layout should be {expected}, but got {name!r}") from None


def by_head(tensor: Tensor, layout: Layout, heads: int) -> Tensor:
    """Convert a tensor from a dense layout to [B,N,S,D]."""
    if layout is Layout.BSH:
        return tensor.unflatten(-1, (heads, -1)).transpose(1, 2)
    if layout is Layout.SBH:
        return tensor.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
    return tensor.transpose(1, 2) if layout is Layout.BSND else tensor


def from_head(tensor: Tensor, layout: Layout) -> Tensor:
    """Convert a tensor [B,N,S,D] to a dense layout."""
    if layout is Layout.BSH:
        return tensor.transpose(1, 2).flatten(2)
    if layout is Layout.SBH:
        return tensor.permute(2, 0, 1, 3).flatten(2)
    return tensor.transpose(1, 2) if layout is Layout.BSND else tensor


def sequences_of(
    query: Tensor, key: Tensor, queries: Sequence[int] | None, keys: Sequence[int] | None
) -> list[tuple[slice, slice]]:
    """Compute the rows and columns of each sequence of a packed batch from the cumulative lengths.

    Raises:
        RuntimeError: the lengths are missing, or do not match the tensors.
    """
    if not queries or not keys or len(queries) != len(keys):
        raise RuntimeError(
            "npu_fusion_attention: actual_seq_qlen and actual_seq_kvlen must have the same length and cannot be empty"
        )
    used = len(queries)
    while used > 1 and queries[used - 1] == 0:
        used -= 1  # trailing zeros switch sequences off
    blocks, row, column = [], 0, 0
    for row_end, column_end in zip(queries[:used], keys[:used], strict=True):
        if row_end < row or column_end < column or row_end > query.shape[0] or column_end > key.shape[0]:
            raise RuntimeError(
                f"npu_fusion_attention: actual_seq_qlen and actual_seq_kvlen must not decrease, and must not exceed "
                f"{query.shape[0]} and {key.shape[0]} tokens, but are {list(queries)} and {list(keys)}"
            )
        blocks.append((slice(row, row_end), slice(column, column_end)))
        row, column = row_end, column_end
    return blocks


_LAYOUTS = ("BSH", "BSND", "BNSD", "TND", "BNSD_BSND", "BSND_NBSD", "BNSD_NBSD", "TND_NTD")


def layouts(name: str) -> tuple[str, str]:
    """Return the layouts of the query and of the result for an `input_layout`. Raise RuntimeError if the layout does
    not exist."""
    if name not in _LAYOUTS:
        raise RuntimeError(
            f"npu_fused_infer_attention_score: input_layout should be {'/'.join(_LAYOUTS)}, but got {name!r}"
        )
    query, _, result = name.partition("_")
    return query, result or query


def sequences(tensor: Tensor, layout: str, heads: int, lengths: Sequence[int] | None) -> list[Tensor]:
    """Split a batch into sequences of shape [N,S,D], and remove the padding."""
    if layout == "TND":
        if not lengths:
            raise RuntimeError(
                "npu_fused_infer_attention_score: the TND layout requires the cumulative lengths of the sequences"
            )
        starts = [0, *lengths[:-1]]
        return [tensor[start:end].transpose(0, 1) for start, end in zip(starts, lengths, strict=True)]
    if layout == "BSH":
        tensor = tensor.unflatten(-1, (heads, -1))
    by_head = tensor if layout == "BNSD" else tensor.transpose(1, 2)
    if lengths is None:
        return list(by_head)
    if len(lengths) == 1:
        lengths = list(lengths) * by_head.shape[0]
    if len(lengths) != by_head.shape[0]:
        raise RuntimeError(
            f"npu_fused_infer_attention_score: the batch has {by_head.shape[0]} sequences, but there are "
            f"{len(lengths)} lengths"
        )
    return [sequence[:, :length] for sequence, length in zip(by_head, lengths, strict=True)]


def cache_lengths(lengths: Sequence[int] | None, count: int) -> list[int]:
    """Return the length of each sequence of a cache. Raise RuntimeError if the lengths are missing."""
    if lengths is None or len(lengths) not in (1, count):
        raise RuntimeError(
            f"npu_fused_infer_attention_score: with a block_table, actual_seq_lengths_kv must contain {count} "
            f"lengths, one for each sequence, but is {lengths}"
        )
    return list(lengths) * count if len(lengths) == 1 else list(lengths)


def cached(cache: Tensor, table: Tensor, size: int, heads: int, lengths: list[int]) -> list[Tensor]:
    """Gather each sequence from the blocks of a paged cache. Return each sequence with the shape [N,S,D]."""
    blocks = cache.unflatten(-1, (heads, -1)).transpose(1, 2) if cache.dim() == 3 else cache  # [blocks,N,size,D]
    if blocks.shape[2] != size:
        raise RuntimeError(
            f"npu_fused_infer_attention_score: block_size is {size}, but the blocks of the cache have "
            f"{blocks.shape[2]} rows"
        )
    if table.dim() != 2 or table.shape[0] != len(lengths):
        raise RuntimeError(
            f"npu_fused_infer_attention_score: block_table must be [{len(lengths)}, blocks], one row for each "
            f"sequence, but its shape is {tuple(table.shape)}"
        )
    found = []
    for row, length in zip(table, lengths, strict=True):
        used = row[: -(-length // size)].long()
        found.append(blocks[used].transpose(0, 1).flatten(1, 2)[:, :length])
    return found


def joined(parts: list[Tensor], rows: int, layout: str) -> Tensor:
    """Concatenate sequences of shape [N,S,D] into one tensor with `rows` rows, padded with zeros. In TND and NTD,
    `rows` is the total number of tokens."""
    if layout in ("TND", "NTD"):
        packed = torch.cat([part.transpose(0, 1) for part in parts])
        packed = torch.nn.functional.pad(packed, (0, 0, 0, 0, 0, rows - packed.shape[0]))
        return packed if layout == "TND" else packed.transpose(0, 1)
    out = torch.stack([torch.nn.functional.pad(part, (0, 0, 0, rows - part.shape[1])) for part in parts])
    if layout == "BSH":
        return out.transpose(1, 2).flatten(2)
    return {"BNSD": out, "BSND": out.transpose(1, 2), "NBSD": out.transpose(0, 1)}[layout]


def wider(tensors: Sequence[Tensor], more: Sequence[Tensor]) -> list[Tensor]:
    """Append the columns of each tensor in `more` to the corresponding tensor in `tensors`."""
    return [torch.cat(pair, -1) for pair in zip(tensors, more, strict=True)]


_warned: set[str] = set()


def check_half(operator: str, argument: str, tensor: Tensor) -> None:
    """Raise RuntimeError unless the tensor is float16 or bfloat16. For float32, issue a warning instead, once for each
    operator."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return
    if tensor.dtype != torch.float32:
        raise RuntimeError(f"{operator}: {argument} must be float16 or bfloat16, but is {tensor.dtype}")
    if operator not in _warned:
        _warned.add(operator)
        warnings.warn(
            f"{operator} computes float32 on virtual NPUs only: a real NPU takes float16 and bfloat16", stacklevel=2
        )


_HEADS, _WIDTH = 2048, 512  # the limits of the fused operator
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_KEYS = ("PrivateUse1", "AutogradPrivateUse1")
_libraries: list[torch.library.Library] = []  # a deleted library would take its operators along


def register() -> None:
    """Make torch call this module's scaled_dot_product_attention on NPUs. Repeated calls do nothing."""
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
    """torch's operator: query [B,N,Sq,D], key and value [B,Nkv,Skv,D] -> attention [B,N,Sq,D].

    The fused form saves query, key, value, the result, and sixteen float32 numbers for each row. Its results are the
    same as on the CPU. The operator is not fused with dropout, with a mask that is not bool, or with shapes or dtypes
    that `_is_fused` does not accept. Then the attention scores stay in memory. A real NPU also fuses dropout.
    """
    if not _is_fused(query, key, value, attn_mask, dropout_p):
        found: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, _added(attn_mask, query), dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
        return found
    if is_causal and attn_mask is not None:
        raise RuntimeError("The attn_mask should be none when is_causal is true, but got a mask")
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
    """Return the mask that the fused operator accepts and keeps: True for each masked score, or a causal template."""
    if is_causal:
        # The real operator creates an upper triangle of ones. Here, nothing reads it, because the rule is known.
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


_TOKENS = {Layout.BSH: 1, Layout.SBH: 0, Layout.BSND: 1, Layout.BNSD: 2}
_CAUSAL = (SparseMode.LEFT_UP_CAUSAL, SparseMode.RIGHT_DOWN_CAUSAL)


def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
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
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """Attention: `dropout(softmax(mask(scale * (Q K^T + pse)))) V`, computed in float32. Differentiable in query, key,
    value, pse, and sink.

    Shapes: query [B,S,N*D] (BSH), [S,B,N*D] (SBH), [B,S,N,D] (BSND), [B,N,S,D] (BNSD) or [T,N,D] (TND). Key and value
    have the same layout with Nkv heads, and N is a multiple of Nkv. TND requires the cumulative lengths of the
    sequences, without the leading 0.

    `atten_mask` is True for each masked score. For sparse modes 0, 1, and 5, the mask has the shape of the scores. For
    modes 2, 3, 4, 7, and 8, it is a template of 2048x2048, and for mode 6, a template of 3072x2048. Modes 7 and 8 are
    for packed batches (TND). With `atten_mask=None`, the sparse mode is ignored, as documented. `prefix` contains a
    length for each sequence (modes 5 and 6). `pse` [B|1,N,Sq|1,Skv] is added to the products; TND does not support
    `pse`. `sink` [N] adds one score to each row, without a value. The result of a fully masked row is zeros.

    Returns:
        (attention, softmax_max, softmax_sum, empty, seed, offset, numels). Maximum and sum are float32 [B,N,S,8], or
        [T,N,8] for TND, and contain each number eight times.

    Raises:
        RuntimeError: an argument is out of range.
        NotImplementedError: pse is passed with the TND layout.
    """
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
    # Dropout must draw from the NPU's own generator.
    if keep_prob < 1 or not is_fusible(given):
        out, top, total = compute(*given)
    else:
        results = _results(query, key, value, head_num, layout)
        flops = _flops(query, results[1], key, layout, lengths, is_causal=rule.mode in _CAUSAL)
        out, top, total = fused("attention", compute, results, given, flops=flops)
    return out, top, total, query.new_empty(0), 0, 0, 0


def _results(query: Tensor, key: Tensor, value: Tensor, heads: int, layout: Layout) -> tuple[Result, Result, Result]:
    """Return the shapes and dtypes of the attention, the row maximum, and the row sum.

    Raises:
        RuntimeError: the number of query heads is not a multiple of the number of key heads.
    """
    if layout is Layout.TND:
        check_heads(heads, key.shape[1])
        rows: tuple[int, ...] = (query.shape[0], heads)
        shape = (*query.shape[:2], value.shape[-1])
    else:
        # These are views of the right shapes; nothing is computed.
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
    """Return the number of floating-point operations of an NPU for a call. `rows` are the row maxima: [B,N,S,8], or
    [T,N,8] in TND."""
    if layout is Layout.TND:
        sizes = [(queries.stop - queries.start, keys.stop - keys.start) for queries, keys in lengths]
        return sum(flops_of(rows.shape[1], *size, query.shape[-1], is_causal) for size in sizes)
    batch, heads, queries, _ = rows.shape
    keys = key.shape[_TOKENS[layout]]
    return flops_of(batch * heads, queries, keys, query.numel() // (batch * heads * queries), is_causal)


def check(query: Tensor, key: Tensor, value: Tensor, head_num: int, layout: Layout, how: How) -> None:
    """Raise RuntimeError if the tensors do not match the layout or each other, or if keep_prob is out of range."""
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
            f"npu_fusion_attention: query, key, and value must have the same dtype, but have {query.dtype}, "
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
        raise NotImplementedError("npu_fusion_attention: virtual-ascend does not implement pse with the TND layout")
    if pse is not None and (pse.dim() != 4 or pse.shape[1] != heads):
        raise RuntimeError(
            f"npu_fusion_attention: pse must have shape [B|1,{heads},Sq|1,Skv], but has shape {tuple(pse.shape)}"
        )
    if sink is not None and (tuple(sink.shape) != (heads,) or sink.dtype is not torch.float32):
        raise RuntimeError(
            f"npu_fusion_attention: sink must have dtype float32 and shape [{heads}], but has dtype {sink.dtype} and "
            f"shape {tuple(sink.shape)}"
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
    """Convert query, key, and value from a dense layout to [B,N,S,D]. The width of key determines its number of
    heads."""
    width = query.shape[-1] // heads if layout in (Layout.BSH, Layout.SBH) else query.shape[-1]
    key_heads = key.shape[-1] // width if layout in (Layout.BSH, Layout.SBH) else 0
    return by_head(query, layout, heads), by_head(key, layout, key_heads), by_head(value, layout, key_heads)
