"""npu_fusion_attention: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_fusion_attention.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

UNBOUNDED = 2147483647
TEMPLATE = 2048  # side of the mask that the compressed modes take


class Layout(Enum):
    """Order of the dimensions: B batch, S sequence, N heads, D width of a head, H = N*D, T all tokens of a packed
    batch."""

    BSH = "BSH"
    SBH = "SBH"
    BSND = "BSND"
    BNSD = "BNSD"
    TND = "TND"


class SparseMode(IntEnum):
    """Which scores take part; i is the query's row, j the key's column."""

    DEFAULT = 0  # not masked, j-i <= next_tockens and i-j <= pre_tockens
    ALL = 1  # not masked
    LEFT_UP_CAUSAL = 2  # j <= i
    RIGHT_DOWN_CAUSAL = 3  # j <= i + Skv-Sq
    BAND = 4  # as DEFAULT, counted from the bottom right corner
    PREFIX = 5  # RIGHT_DOWN_CAUSAL or j < prefix; the mask shows it whole
    PREFIX_COMPRESSED = 6  # the same with a template
    VARLEN_OUTER_CUT = 7  # BAND for the last sequence, RIGHT_DOWN_CAUSAL for the others
    VARLEN_INNER_CUT = 8  # BAND for the first sequence, LEFT_UP_CAUSAL for the others


_PREFIXED = (SparseMode.PREFIX, SparseMode.PREFIX_COMPRESSED)
_GIVEN = (SparseMode.DEFAULT, SparseMode.ALL, SparseMode.PREFIX)  # the mask is the scores' own, and not a template
_TEMPLATES = {SparseMode.PREFIX_COMPRESSED: (3072, 2048)}


@dataclass(frozen=True, slots=True)
class _Rule:
    """The mask of a call, not yet bound to a block's size."""

    mode: SparseMode
    mask: Tensor | None
    before: int
    after: int
    prefix: Sequence[int] | None = None

    def of_sequence(self, number: int, count: int, rows: int, columns: int) -> _Rule:
        """The rule of one sequence of a packed batch."""
        mode = self.mode
        if mode is SparseMode.VARLEN_OUTER_CUT:
            mode = SparseMode.BAND if number == count - 1 else SparseMode.RIGHT_DOWN_CAUSAL
        elif mode is SparseMode.VARLEN_INNER_CUT:
            mode = SparseMode.BAND if number == 0 else SparseMode.LEFT_UP_CAUSAL
        mask = self.mask
        if mask is not None and mode in _GIVEN:
            mask = mask[:rows, :columns]
        prefix = None if self.prefix is None else self.prefix[number : number + 1]
        return _Rule(mode, mask, self.before, self.after, prefix)

    def keep(self, rows: int, columns: int, device: torch.device) -> Tensor | None:
        """Bool [.., rows, columns], True where a score takes part; None where all do.

        Without a mask the mode is ignored, causal ones too: that is documented, and attends to the future.
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
        # From here on the mask is a template whose content is implied.
        if self.mode is SparseMode.LEFT_UP_CAUSAL:
            return j <= i
        if self.mode is SparseMode.RIGHT_DOWN_CAUSAL:
            return j <= i + shift
        return (j - i - shift <= self.after) & (i + shift - j <= self.before)


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
    _refuse(
        padding_mask=padding_mask,
        softmax_layout=softmax_layout or None,
        dropout_mask=dropout_mask,
        seed=seed or None,
        offset=offset or None,
    )
    layout = _layout(input_layout)
    _check(query, key, value, head_num, layout, keep_prob)
    rule = _Rule(_mode(sparse_mode, layout), atten_mask, int(pre_tockens), int(next_tockens), prefix)
    _check_mask(rule, layout)
    _check_extras(pse, sink, head_num, layout)
    how = _How(scale, keep_prob, pse, sink)
    if layout is Layout.TND:
        lengths = _lengths(query, key, actual_seq_qlen, actual_seq_kvlen)
        _check_prefix(rule, len(lengths))
        out, top, total = _packed(query, key, value, how, rule, lengths)
    else:
        _check_prefix(rule, query.shape[1 if layout is Layout.SBH else 0])
        out, top, total = _dense(query, key, value, head_num, layout, how, rule)
    return out, top, total, query.new_empty(0), 0, 0, 0


@dataclass(frozen=True, slots=True)
class _How:
    """What is done to the scores."""

    scale: float
    keep_prob: float = 1.0
    pse: Tensor | None = None
    sink: Tensor | None = None


def _refuse(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"npu_fusion_attention: {name} is not implemented by the virtual Ascend")


def _layout(name: str) -> Layout:
    try:
        return Layout(name)
    except ValueError:
        expected = "/".join(layout.value for layout in Layout)
        raise RuntimeError(f"npu_fusion_attention: input_layout should be {expected}, but got {name!r}") from None


def _mode(number: int, layout: Layout) -> SparseMode:
    last = 8 if layout is Layout.TND else 6
    if not 0 <= number <= last or (layout is Layout.TND and number == 5):
        expected = "[0,5) or (5,8]" if layout is Layout.TND else "[0,6]"
        raise RuntimeError(
            f"npu_fusion_attention: the sparse_mode value must be in range of {expected}, but got {number}"
        )
    return SparseMode(number)


def _check(query: Tensor, key: Tensor, value: Tensor, head_num: int, layout: Layout, keep_prob: float) -> None:
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
    if not 0 < keep_prob <= 1:
        raise RuntimeError(f"npu_fusion_attention: keep_prob must be in range of (0, 1], but got {keep_prob}")
    heads = _heads(query, layout, head_num)
    if heads != head_num:
        raise RuntimeError(f"npu_fusion_attention: head_num is {head_num}, but query has {heads} heads")


def _heads(tensor: Tensor, layout: Layout, head_num: int) -> int:
    if layout is Layout.BNSD:
        return int(tensor.shape[1])
    if layout in (Layout.BSND, Layout.TND):
        return int(tensor.shape[-2])
    return head_num if head_num > 0 and tensor.shape[-1] % head_num == 0 else -1


def _check_mask(rule: _Rule, layout: Layout) -> None:
    mask = rule.mask
    if mask is None:
        return
    if mask.dtype not in (torch.bool, torch.uint8):
        raise RuntimeError(f"npu_fusion_attention: atten_mask must be bool or uint8, but is {mask.dtype}")
    template = _TEMPLATES.get(rule.mode, (TEMPLATE, TEMPLATE))
    if rule.mode not in _GIVEN and tuple(mask.shape[-2:]) != template:
        raise RuntimeError(
            f"npu_fusion_attention: sparse_mode {int(rule.mode)} takes an atten_mask of {template[0]}x{template[1]}, "
            f"but got {tuple(mask.shape)}"
        )
    if layout is Layout.TND and mask.dim() != 2:
        raise RuntimeError(f"npu_fusion_attention: TND takes an atten_mask of 2 dimensions, but got {mask.dim()}")


def _check_prefix(rule: _Rule, sequences: int) -> None:
    if rule.mode not in _PREFIXED or rule.mask is None:
        return
    if rule.prefix is None or len(rule.prefix) != sequences or sequences > 32:
        found = "none" if rule.prefix is None else f"{len(rule.prefix)}"
        raise RuntimeError(
            f"npu_fusion_attention: sparse_mode {int(rule.mode)} takes a prefix for each of at most 32 sequences, but "
            f"got {found} for {sequences}"
        )


def _check_extras(pse: Tensor | None, sink: Tensor | None, heads: int, layout: Layout) -> None:
    if pse is not None and layout is Layout.TND:
        raise NotImplementedError("npu_fusion_attention: pse in TND is not implemented by the virtual Ascend")
    if pse is not None and (pse.dim() != 4 or pse.shape[1] != heads):
        raise RuntimeError(f"npu_fusion_attention: pse must be [B|1,{heads},Sq|1,Skv], but is {tuple(pse.shape)}")
    if sink is not None and (tuple(sink.shape) != (heads,) or sink.dtype is not torch.float32):
        raise RuntimeError(
            f"npu_fusion_attention: sink must be float32 [{heads}], but is {sink.dtype} {tuple(sink.shape)}"
        )


def _lengths(
    query: Tensor, key: Tensor, queries: Sequence[int] | None, keys: Sequence[int] | None
) -> list[tuple[slice, slice]]:
    if not queries or not keys or len(queries) != len(keys):
        raise RuntimeError(
            "npu_fusion_attention: the size of actual_seq_qlen and actual_seq_kvlen must be the same and "
            "cannot be empty"
        )
    used = len(queries)
    while used > 1 and queries[used - 1] == 0:
        used -= 1  # trailing zeros switch sequences off
    blocks, row, column = [], 0, 0
    for row_end, column_end in zip(queries[:used], keys[:used], strict=True):
        if row_end < row or column_end < column or row_end > query.shape[0] or column_end > key.shape[0]:
            raise RuntimeError(
                f"npu_fusion_attention: actual_seq_qlen and actual_seq_kvlen must grow up to {query.shape[0]} and "
                f"{key.shape[0]} tokens, but got {list(queries)} and {list(keys)}"
            )
        blocks.append((slice(row, row_end), slice(column, column_end)))
        row, column = row_end, column_end
    return blocks


def _packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    how: _How,
    rule: _Rule,
    blocks: list[tuple[slice, slice]],
) -> tuple[Tensor, Tensor, Tensor]:
    tokens, heads, _ = query.shape
    outs, tops, totals = [], [], []
    for number, (rows, columns) in enumerate(blocks):
        size, width = rows.stop - rows.start, columns.stop - columns.start
        if size == 0:
            continue
        bound = rule.of_sequence(number, len(blocks), size, width)
        by_head: Callable[[Tensor], Tensor] = lambda part: part.transpose(0, 1).unsqueeze(0)  # noqa: E731
        out, top, total = _attend(
            by_head(query[rows]),
            by_head(key[columns]),
            by_head(value[columns]),
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
    how: _How,
    rule: _Rule,
) -> tuple[Tensor, Tensor, Tensor]:
    width = query.shape[-1] // heads if layout in (Layout.BSH, Layout.SBH) else query.shape[-1]
    key_heads = key.shape[-1] // width if layout in (Layout.BSH, Layout.SBH) else 0
    q, k, v = (_by_head(t, layout, n) for t, n in ((query, heads), (key, key_heads), (value, key_heads)))
    out, top, total = _attend(q, k, v, how, rule.keep(q.shape[2], k.shape[2], query.device))
    if layout is Layout.BSH:
        out = out.transpose(1, 2).flatten(2)
    elif layout is Layout.SBH:
        out = out.permute(2, 0, 1, 3).flatten(2)
    elif layout is Layout.BSND:
        out = out.transpose(1, 2)
    return out, top, total


def _by_head(tensor: Tensor, layout: Layout, heads: int) -> Tensor:
    """To [B,N,S,D]."""
    if layout is Layout.BSH:
        return tensor.unflatten(-1, (heads, -1)).transpose(1, 2)
    if layout is Layout.SBH:
        return tensor.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
    return tensor.transpose(1, 2) if layout is Layout.BSND else tensor


def _attend(
    query: Tensor, key: Tensor, value: Tensor, how: _How, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """query [B,N,Sq,D], key and value [B,Nkv,Skv,D] -> attention [B,N,Sq,D], row maximum and sum [B,N,Sq,8]."""
    heads, key_heads = query.shape[1], key.shape[1]
    if heads % key_heads:
        raise RuntimeError(
            f"npu_fusion_attention: the heads of query ({heads}) must be a multiple of those of key ({key_heads})"
        )
    if heads != key_heads:
        key = key.repeat_interleave(heads // key_heads, dim=1)
        value = value.repeat_interleave(heads // key_heads, dim=1)
    scores = torch.matmul(query.float() * how.scale, key.float().transpose(-1, -2))
    if how.pse is not None:
        scores = scores + how.pse.float() * how.scale
    if keep is not None:
        scores = scores.masked_fill(~keep, float("-inf"))
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
    weights = weights / total.clamp_min(torch.finfo(torch.float32).tiny)  # a row that keeps nothing: zeros, not NaN
    if how.keep_prob < 1:
        weights = functional.dropout(weights, 1 - how.keep_prob)
    out = torch.matmul(weights, value.float()).to(query.dtype)
    return out, top.expand(*top.shape[:-1], 8), total.detach().expand(*total.shape[:-1], 8)
