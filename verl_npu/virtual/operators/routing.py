"""Rows to experts and back, for inference: op-plugin,
docs/zh/custom_APIs/torch_npu/torch_npu-npu_moe_init_routing_v2.md and torch_npu-npu_moe_finalize_routing.md."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .gradient import without_formula


def npu_moe_init_routing_v2(
    x: Tensor,
    expert_idx: Tensor,
    *,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    x_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Copies of the rows sorted by expert, without those of experts outside the range; no gradient.

    Shapes: x [T,H], expert_idx int32 [T,K], scale [T]; active_expert_range [first, end), all experts unless given.

    Returns:
        (rows [M,H]; row_idx int32 [T*K]: with row_idx_type 0 where a copy went, -1 for none, with 1 which copy comes
        when; tokens of each expert int64, as ends (expert_tokens_num_type 0), counts (1) or (expert, count) pairs (2),
        empty without the flag; the rows' scale [M], empty without).

    Raises:
        RuntimeError: shapes or a range that do not fit, and in backward.
        NotImplementedError: quantisation, and drop_pad_mode 1.
    """
    given = dict(locals())
    if given.pop("x_dtype") is not None:
        raise _unwritten("npu_moe_init_routing_v2", "x_dtype")
    return _sorted_by_expert("npu_moe_init_routing_v2", **given)


def npu_moe_init_routing_custom(
    x: Tensor,
    expert_idx: Tensor,
    *,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = 0,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """vllm-ascend's own `npu_moe_init_routing_v2`, which quantises unless it is told not to:
    csrc/moe/moe_init_routing_custom of v0.13.0 to v0.23.0.

    Raises:
        RuntimeError: shapes or a range that do not fit, and in backward.
        NotImplementedError: quantisation, and drop_pad_mode 1.
    """
    given = dict(locals())
    return _sorted_by_expert("npu_moe_init_routing_custom", **given)


def _sorted_by_expert(
    name: str,
    x: Tensor,
    expert_idx: Tensor,
    *,
    scale: Tensor | None,
    offset: Tensor | None,
    active_num: int,
    expert_capacity: int,
    expert_num: int,
    drop_pad_mode: int,
    expert_tokens_num_type: int,
    expert_tokens_num_flag: bool,
    quant_mode: int,
    active_expert_range: Sequence[int],
    row_idx_type: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # expert_capacity only counts in drop_pad_mode 1.
    if quant_mode != -1 or offset is not None:
        raise _unwritten(name, f"quantisation (quant_mode={quant_mode})")
    if drop_pad_mode:
        raise _unwritten(name, f"drop_pad_mode {drop_pad_mode}")
    first, end = _experts_kept(name, x, expert_idx, active_expert_range or (0, expert_num))

    def compute() -> tuple[Tensor, ...]:
        taken, places, counts = _routes(expert_idx, first, end, active_num, by_destination=row_idx_type == 1)
        return (
            x[taken],
            places.to(torch.int32),
            _tokens(counts, first, expert_tokens_num_type) if expert_tokens_num_flag else counts.new_empty(0),
            x.new_empty(0, dtype=torch.float32) if scale is None else scale[taken],
        )

    rows, places, counts, scales_of_rows = without_formula(name, (x,), compute)
    return rows, places, counts, scales_of_rows


def _unwritten(name: str, what: str) -> NotImplementedError:
    return NotImplementedError(f"{name}: {what} is not implemented by the virtual Ascend")


def _experts_kept(name: str, x: Tensor, expert_idx: Tensor, experts: Sequence[int]) -> tuple[int, int]:
    """The range [first, end) of the experts whose rows are copied; raises for shapes and ranges that do not fit."""
    if x.dim() != 2 or expert_idx.dim() != 2 or expert_idx.shape[0] != x.shape[0]:
        raise RuntimeError(
            f"{name}: expected x [T,H] and expert_idx [T,K], but got {tuple(x.shape)} and {tuple(expert_idx.shape)}"
        )
    first, end = experts
    if not 0 <= first < end:
        raise RuntimeError(
            f"{name}: active_expert_range must be [first, end) with first < end, but is [{first}, {end})"
        )
    return first, end


def _routes(
    expert_idx: Tensor, first: int, end: int, limit: int, *, by_destination: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Which rows are copied, in the order of the copies; where each copy went, or with `by_destination` which copy
    comes when; and the tokens of each expert."""
    copies = expert_idx.shape[1]
    experts = expert_idx.reshape(-1).long()
    inside = (experts >= first) & (experts < end)
    order = torch.argsort(experts.masked_fill(~inside, torch.iinfo(torch.int64).max), stable=True)
    kept = int(inside.sum())
    taken = order[: min(limit, kept) if limit > 0 else kept] // copies
    counts = torch.bincount(experts[inside] - first, minlength=end - first)
    if by_destination:
        return taken, order, counts
    places = torch.full_like(order, -1)
    places[order[:kept]] = torch.arange(kept, device=order.device)
    return taken, places, counts


def _tokens(counts: Tensor, first: int, kind: int) -> Tensor:
    """The tokens of each expert in the form that is asked for: ends (0), counts (1), or (expert, count) pairs (2)."""
    if kind == 0:
        return counts.cumsum(0)
    if kind != 2:
        return counts
    busy = counts.nonzero().squeeze(1)
    pairs = torch.stack((busy + first, counts[busy]), 1)
    return torch.nn.functional.pad(pairs, (0, 0, 0, len(counts) - len(busy)))


def npu_moe_finalize_routing(
    expanded_permuted_rows: Tensor,
    skip1: Tensor | None,
    skip2: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    expanded_src_to_dst_row: Tensor,
    export_for_source_row: Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> Tensor:
    """`skip1 + skip2 + sum_k scales[i,k] * (rows[place[i,k]] + bias[expert[i,k]])`; no gradient.

    Shapes: rows [T*K,H] (drop_pad_mode 0, 2) or [E,C,H] (1, 3; -1 stands for a row of zeros), skips [T,H], bias [E,H],
    scales [T,K] (without them K is `k`), places int32 [T*K]: column by column (0, 1) or row by row (2, 3), experts
    int32 [T,K].

    Raises:
        RuntimeError: an unknown mode, skip2 without skip1, bias without experts, and in backward.
    """
    name = "npu_moe_finalize_routing"
    mode = drop_pad_mode or 0
    if mode not in (0, 1, 2, 3):
        raise RuntimeError(f"{name}: drop_pad_mode must be 0 to 3, but is {mode}")
    if (skip2 is not None and skip1 is None) or (bias is not None and export_for_source_row is None):
        raise RuntimeError(f"{name}: skip2 needs skip1, and bias needs export_for_source_row")

    def compute() -> tuple[Tensor, ...]:
        rows = expanded_permuted_rows.reshape(-1, expanded_permuted_rows.shape[-1])
        copies = k or 1 if scales is None else scales.shape[1]
        places = expanded_src_to_dst_row.long()
        places = places.view(copies, -1).t() if mode in (0, 1) else places.view(-1, copies)
        found = rows[places.clamp_min(0)].masked_fill((places < 0).unsqueeze(-1), 0)
        if bias is not None and export_for_source_row is not None:
            found = found + bias[export_for_source_row.long()]
        if scales is not None:
            found = found * scales.unsqueeze(-1)
        out = found.sum(1)
        for skip in (skip1, skip2):
            out = out if skip is None else out + skip
        return (out.to(rows.dtype),)

    (out,) = without_formula(name, (expanded_permuted_rows, scales), compute)
    return out


def npu_moe_compute_expert_tokens(sorted_expert_for_source_row: Tensor, num_expert: int) -> Tensor:
    """Where each expert's rows end, int32 [num_expert], from the experts of the sorted rows.

    Raises:
        RuntimeError: experts that are no whole numbers.
    """
    dtype = sorted_expert_for_source_row.dtype
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        raise RuntimeError(
            f"npu_moe_compute_expert_tokens: sorted_expert_for_source_row must be int32, but is {dtype}"
        )
    experts = torch.arange(num_expert, device=sorted_expert_for_source_row.device)
    return torch.searchsorted(sorted_expert_for_source_row.long(), experts, right=True).to(torch.int32)
