"""Mixtures of experts: the choice of experts, the routing of tokens to them and back, and grouped matrix products.

The choice of experts: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_moe_gating_top_k_softmax.md and
torch_npu-npu_moe_gating_top_k.md.

Routing for inference: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_moe_init_routing_v2.md and
torch_npu-npu_moe_finalize_routing.md.

Routing for training: op-plugin, in docs/zh/custom_APIs/torch_npu torch_npu-npu_moe_token_permute.md,
torch_npu-npu_moe_token_unpermute.md, and the same two with _with_routing_map.

Grouped matrix products: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_grouped_matmul.md and
torch_npu-npu_grouped_matmul_add_.md.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from .fused import Result, computed, fused, is_fusible
from .gradient import without_formula
from .layout import dtype_of


def npu_moe_gating_top_k_softmax(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the k largest values of softmax(x), computed in float32 and not renormalized. Has no backward pass.

    Shapes: x [..,E], finished bool [..]. Finished rows are assigned to no expert and get the index E.

    Returns:
        (weights [..,k] of x's dtype, experts int32 [..,k], row_idx int32 [..,k], numbered in column-major order).

    Raises:
        RuntimeError: k is out of range, `finished` does not have the shape of x's rows, or the backward pass is run.
    """
    if x.dim() not in (2, 3) or x.dtype not in _FLOATS:
        raise RuntimeError(
            "npu_moe_gating_top_k_softmax: x must have 2 or 3 dimensions and dtype float16, float32, or bfloat16, but "
            f"has shape {tuple(x.shape)} and dtype {x.dtype}"
        )
    if not 0 < k <= x.shape[-1]:
        raise RuntimeError(f"npu_moe_gating_top_k_softmax: k must be from 1 to {x.shape[-1]}, but is {k}")
    if finished is not None and finished.shape != x.shape[:-1]:
        raise RuntimeError(
            f"npu_moe_gating_top_k_softmax: finished must have shape {tuple(x.shape[:-1])}, but has shape "
            f"{tuple(finished.shape)}"
        )

    def compute() -> tuple[Tensor, ...]:
        scores = torch.softmax(x.float(), dim=-1)
        experts = _greatest(scores, k)
        weights = scores.gather(-1, experts)
        if finished is not None:
            experts = experts.masked_fill(finished.unsqueeze(-1), x.shape[-1])
        rows = torch.arange(weights.numel(), device=x.device, dtype=torch.int32).view(k, -1).t()
        return weights.to(x.dtype), experts.to(torch.int32), rows.reshape(weights.shape)

    weights, experts, rows = without_formula("npu_moe_gating_top_k_softmax", (x,), compute)
    return weights, experts, rows


def npu_moe_gating_top_k(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the k experts with the largest scores. The experts are divided into group_count groups, and only the best
    k_group groups take part. The scores are softmax(x) (norm_type 0) or sigmoid(x) (norm_type 1). Has no backward
    pass.

    Shapes: x [T,E], bias [E]. The bias affects only the choice of experts. The score of a group is the score of its
    best expert (group_select_mode 0) or the sum of the scores of its two best experts (group_select_mode 1). The
    weights are the scores of the chosen experts. With norm_type 1, the weights are divided by their sum. All weights
    are multiplied by routed_scaling_factor.

    Returns:
        (weights [T,k] of x's dtype, experts int32 [T,k], scores float32 [T,E], which are empty unless out_flag is
        set).

    Raises:
        RuntimeError: an argument is out of range, or the backward pass is run.
    """
    name = "npu_moe_gating_top_k"
    groups = _Groups(group_count, k_group, group_select_mode)
    _check_scores(name, x, bias)
    _check_gating(name, x.shape[-1], k, groups, ("renorm", renorm, renorm == 0), norm_type)

    def compute() -> tuple[Tensor, ...]:
        weights, chosen, scores = _chosen(x, k, bias, groups, norm_type, eps if norm_type else None)
        weights = (weights * routed_scaling_factor).to(x.dtype)
        return weights, chosen.to(torch.int32), scores if out_flag else scores.new_empty(0)

    weights, chosen, scores = without_formula(name, (x, bias), compute)
    return weights, chosen, scores


def moe_gating_top_k(
    x: Tensor,
    k: int,
    k_group: int,
    group_count: int,
    group_select_mode: int,
    renorm: int,
    norm_type: int,
    out_flag: bool,
    routed_scaling_factor: float,
    eps: float,
    bias_opt: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """vllm-ascend's own version of `npu_moe_gating_top_k` (csrc/moe/moe_gating_top_k, v0.13.0 to v0.23.0).

    The weights are divided by their sum with norm_type 1 (sigmoid), and with norm_type 0 (softmax) if renorm is 1.

    Returns:
        (weights [T,k] of x's dtype, experts int32 [T,k], scores float32 [T,E]). The scores are undefined unless
        out_flag is set.

    Raises:
        RuntimeError: an argument is out of range, or the backward pass is run.
    """
    name = "moe_gating_top_k"
    groups = _Groups(group_count, k_group, group_select_mode)
    _check_scores(name, x, bias_opt)
    _check_gating(name, x.shape[-1], k, groups, ("renorm", renorm, renorm in (0, 1)), norm_type)

    def compute() -> tuple[Tensor, ...]:
        divided = norm_type == 1 or renorm == 1
        weights, chosen, scores = _chosen(x, k, bias_opt, groups, norm_type, eps if divided else None)
        weights = (weights * routed_scaling_factor).to(x.dtype)
        return weights, chosen.to(torch.int32), scores if out_flag else torch.full_like(scores, torch.nan)

    weights, chosen, scores = without_formula(name, (x, bias_opt), compute)
    return weights, chosen, scores


@dataclass(frozen=True, slots=True)
class _Groups:
    """The number of groups of experts, the number of chosen groups, and the mode that computes the score of a
    group."""

    count: int
    chosen: int
    mode: int

    def limits(self, k: int, experts: int) -> Sequence[tuple[str, int, bool]]:
        """Return each argument's name, its value, and whether the value is in range."""
        size = experts // max(self.count, 1)
        return (
            ("group_count", self.count, self.count > 0 and experts % max(self.count, 1) == 0),
            ("k_group", self.chosen, 0 < self.chosen <= self.count and k <= self.chosen * size),
            ("group_select_mode", self.mode, self.mode in (0, 1)),
        )

    def best(self, scores: Tensor) -> Tensor:
        """Return the scores [T,E], with -inf for experts outside the best groups."""
        if self.count == 1:
            return scores
        groups = scores.unflatten(-1, (self.count, -1))
        worth = groups.amax(-1) if self.mode == 0 else groups.topk(2, dim=-1)[0].sum(-1)
        dropped = torch.ones_like(worth, dtype=torch.bool).scatter(-1, _greatest(worth, self.chosen), False)
        return groups.masked_fill(dropped.unsqueeze(-1), float("-inf")).flatten(-2)


_FLOATS = (torch.float16, torch.float32, torch.bfloat16)


def _chosen(
    x: Tensor, k: int, bias: Tensor | None, groups: _Groups, norm_type: int, eps: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights of the k experts with the largest scores, these experts, and all scores.

    The weights are divided by their sum plus `eps`, unless `eps` is None.
    """
    scores = torch.sigmoid(x.float()) if norm_type else torch.softmax(x.float(), dim=-1)
    chosen = _greatest(groups.best(scores if bias is None else scores + bias.float()), k)
    weights = scores.gather(-1, chosen)
    return weights if eps is None else weights / (weights.sum(-1, keepdim=True) + eps), chosen, scores


def _check_scores(name: str, x: Tensor, bias: Tensor | None) -> None:
    if x.dim() != 2 or x.dtype not in _FLOATS:
        raise RuntimeError(
            f"{name}: x must have shape [T,E] and dtype float16, float32, or bfloat16, but has shape {tuple(x.shape)} "
            f"and dtype {x.dtype}"
        )
    if bias is not None and (bias.dim() != 1 or bias.dtype != x.dtype):
        raise RuntimeError(
            f"{name}: bias must have shape [E] and the dtype of x, {x.dtype}, but has shape {tuple(bias.shape)} and "
            f"dtype {bias.dtype}"
        )


def _check_gating(
    name: str, experts: int, k: int, groups: _Groups, renorm: tuple[str, int, bool], norm_type: int
) -> None:
    limits = (
        ("k", k, 0 < k <= experts),
        *groups.limits(k, experts),
        renorm,
        ("norm_type", norm_type, norm_type in (0, 1)),
    )
    for argument, value, good in limits:
        if not good:
            raise RuntimeError(f"{name}: {argument}={value} is out of range for {experts} experts")


def _greatest(scores: Tensor, k: int) -> Tensor:
    return torch.argsort(scores, dim=-1, descending=True, stable=True)[..., :k]


def npu_moe_init_routing(
    x: Tensor, row_idx: Tensor, expert_idx: Tensor, active_num: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Copy the rows, sorted by expert, as documented for CANN's aclnnMoeInitRouting. Has no backward pass.

    Shapes: x [T,H], row_idx int32 [T,K] (each item is copied from row `row_idx % T`), expert_idx int32 [T,K].

    Returns:
        (rows [min(T, active_num)*K, H]; places int32 [T*K]: for each value of row_idx, the position of its copy; the
        experts of the sorted copies int32 [T*K]).

    Raises:
        RuntimeError: shapes or dtypes do not match, or the backward pass is run.
    """
    name = "npu_moe_init_routing"
    if x.dim() != 2 or row_idx.shape != expert_idx.shape or expert_idx.dim() != 2 or len(x) != len(expert_idx):
        raise RuntimeError(
            f"{name}: expected x [T,H], row_idx [T,K], and expert_idx [T,K], but got shapes {tuple(x.shape)}, "
            f"{tuple(row_idx.shape)}, and {tuple(expert_idx.shape)}"
        )
    for what, tensor in (("row_idx", row_idx), ("expert_idx", expert_idx)):
        if tensor.dtype != torch.int32:
            raise RuntimeError(f"{name}: {what} must be int32, but is {tensor.dtype}")

    def compute() -> tuple[Tensor, ...]:
        order = torch.argsort(expert_idx.flatten(), stable=True)
        copies = row_idx.flatten()[order].long()
        places = torch.empty_like(copies)
        places[copies] = torch.arange(len(copies), device=x.device)
        rows = x[copies[: min(len(x), active_num) * expert_idx.shape[1]] % len(x)]
        return rows, places.to(torch.int32), expert_idx.flatten()[order]

    rows, places, experts = without_formula(name, (x,), compute)
    return rows, places, experts


def _init_routing(
    name: str,
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Copy the rows of `x`, sorted by expert. Has no backward pass.

    Rows for experts outside `active_expert_range` are not copied. If fewer than M rows are copied, the other rows of
    the result are zeros; a real NPU leaves these rows uninitialized.

    Shapes: x [T,H], expert_idx int32 [T,K], scale [T]. active_expert_range is [first, end), by default all experts. M
    is T*K, or active_num if active_num is specified and smaller.

    Returns:
        A tuple of four tensors:

        - The copied rows [M,H].
        - row_idx int32 [T*K]. If row_idx_type is 0, entry i is the position among the copied rows of the copy for
          `expert_idx.flatten()[i]`, or -1 if that expert is outside the range. If row_idx_type is 1, entry i is the
          index in `expert_idx.flatten()` of copied row i.
        - The token counts of the experts, int64: cumulative if expert_tokens_num_type is 0, separate if it is 1, and
          (expert, count) pairs if it is 2. Empty unless expert_tokens_num_flag is set.
        - The scales of the rows [M]. Empty if `scale` is None.

    Raises:
        RuntimeError: the shapes do not match, `active_expert_range` is invalid, or the backward pass is run.
        NotImplementedError: quantization or drop_pad_mode 1 is requested.
    """
    # Only drop_pad_mode 1 uses expert_capacity.
    if quant_mode != -1 or offset is not None:
        raise _unwritten(name, f"quantization (quant_mode={quant_mode})")
    if drop_pad_mode:
        raise _unwritten(name, f"drop_pad_mode {drop_pad_mode}")
    first, end = _experts_kept(name, x, expert_idx, active_expert_range or (0, expert_num))

    def compute() -> tuple[Tensor, ...]:
        size = expert_idx.numel() if active_num <= 0 else min(active_num, expert_idx.numel())
        taken, places, counts = _routes(expert_idx, first, end, size, by_destination=row_idx_type == 1)
        unwritten = size - len(taken)
        return (
            pad(x[taken], (0, 0, 0, unwritten)),
            places.to(torch.int32),
            _tokens(counts, first, expert_tokens_num_type) if expert_tokens_num_flag else counts.new_empty(0),
            x.new_empty(0, dtype=torch.float32) if scale is None else pad(scale[taken], (0, unwritten)),
        )

    rows, places, counts, scales_of_rows = without_formula(name, (x,), compute)
    return rows, places, counts, scales_of_rows


npu_moe_init_routing_v2 = functools.partial(_init_routing, "npu_moe_init_routing_v2")
npu_moe_init_routing_custom = functools.partial(_init_routing, "npu_moe_init_routing_custom", quant_mode=0)
"""vllm-ascend's own version of `npu_moe_init_routing_v2` (csrc/moe/moe_init_routing_custom, v0.13.0 to v0.23.0).

The default arguments request quantization, which is not implemented here. Pass quant_mode=-1."""


def _unwritten(name: str, what: str) -> NotImplementedError:
    return NotImplementedError(f"{name}: virtual-ascend does not implement {what}")


def _experts_kept(name: str, x: Tensor, expert_idx: Tensor, experts: Sequence[int]) -> tuple[int, int]:
    """Return the range [first, end) of the experts whose rows are copied. Raise RuntimeError if the shapes do not
    match, or if the range is invalid."""
    if x.dim() != 2 or expert_idx.dim() != 2 or expert_idx.shape[0] != x.shape[0]:
        raise RuntimeError(
            f"{name}: expected x [T,H] and expert_idx [T,K], but got shapes {tuple(x.shape)} and "
            f"{tuple(expert_idx.shape)}"
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
    """Return the row of `x` that each copied row comes from, `row_idx`, and the number of tokens of each expert.

    `row_idx` has type 1 if `by_destination` is set, and type 0 otherwise.
    """
    copies = expert_idx.shape[1]
    experts = expert_idx.reshape(-1).long()
    inside = (experts >= first) & (experts < end)
    order = torch.argsort(experts.masked_fill(~inside, torch.iinfo(torch.int64).max), stable=True)
    kept = int(inside.sum())
    taken = order[: min(limit, kept)] // copies
    counts = torch.bincount(experts[inside] - first, minlength=end - first)
    if by_destination:
        return taken, order, counts
    places = torch.full_like(order, -1)
    places[order[:kept]] = torch.arange(kept, device=order.device)
    return taken, places, counts


def _tokens(counts: Tensor, first: int, kind: int) -> Tensor:
    """Return the tokens of each expert as ends (kind 0), counts (1), or (expert, count) pairs (2)."""
    if kind == 0:
        return counts.cumsum(0)
    if kind != 2:
        return counts
    busy = counts.nonzero().squeeze(1)
    pairs = torch.stack((busy + first, counts[busy]), 1)
    return pad(pairs, (0, 0, 0, len(counts) - len(busy)))


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
    """`skip1 + skip2 + sum_k scales[i,k] * (rows[place[i,k]] + bias[expert[i,k]])`. Has no backward pass.

    Shapes: rows [T*K,H] (drop_pad_mode 0 and 2) or [E,C,H] (drop_pad_mode 1 and 3; the place -1 is a row of zeros),
    skips [T,H], bias [E,H], scales [T,K] (if scales is None, K is the argument `k`), places int32 [T*K] in
    column-major order (drop_pad_mode 0 and 1) or row-major order (drop_pad_mode 2 and 3), experts int32 [T,K].

    Raises:
        RuntimeError: the mode is unknown, skip2 is passed without skip1, bias is passed without experts, or the
            backward pass is run.
    """
    name = "npu_moe_finalize_routing"
    mode = drop_pad_mode or 0
    if mode not in (0, 1, 2, 3):
        raise RuntimeError(f"{name}: drop_pad_mode must be from 0 to 3, but is {mode}")
    if (skip2 is not None and skip1 is None) or (bias is not None and export_for_source_row is None):
        raise RuntimeError(f"{name}: skip2 requires skip1, and bias requires export_for_source_row")

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
    """Return the index after the last row of each expert, as int32 [num_expert]. `sorted_expert_for_source_row`
    contains the expert of each row, in ascending order.

    Raises:
        RuntimeError: the experts are not integers.
    """
    dtype = sorted_expert_for_source_row.dtype
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        raise RuntimeError(
            f"npu_moe_compute_expert_tokens: sorted_expert_for_source_row must be int32, but is {dtype}"
        )
    experts = torch.arange(num_expert, device=sorted_expert_for_source_row.device)
    return torch.searchsorted(sorted_expert_for_source_row.long(), experts, right=True).to(torch.int32)


def npu_moe_token_permute(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """Sort copies of the tokens by expert, in a stable order. Differentiable in tokens.

    Shapes: tokens [T,H], indices [T,K] or [T] (the experts of a token).

    Returns:
        (permuted [T*K,H], sorted_indices int32 [T*K]: the position of copy t*K+k). A positive `num_out_tokens` keeps
        that many rows, and a negative one drops that many.

    Raises:
        RuntimeError: the shapes or dtypes are invalid.
        NotImplementedError: padded_mode is requested.
    """
    _refuse_padded("npu_moe_token_permute", padded_mode)
    if tokens.dim() != 2 or indices.dim() not in (1, 2) or indices.shape[0] != tokens.shape[0]:
        raise RuntimeError(
            "npu_moe_token_permute: expected tokens [T,H] and indices [T,K] or [T], but got shapes "
            f"{tuple(tokens.shape)} and {tuple(indices.shape)}"
        )
    if indices.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"npu_moe_token_permute: indices must be int32 or int64, but are {indices.dtype}")
    copies = 1 if indices.dim() == 1 else indices.shape[1]
    order = torch.argsort(indices.reshape(-1), stable=True)
    places = torch.argsort(order, stable=True).to(torch.int32)
    kept = order.numel()
    if num_out_tokens is not None and kept + num_out_tokens < 0:
        raise RuntimeError(
            f"npu_moe_token_permute: num_out_tokens={num_out_tokens} drops more rows than exist ({kept})"
        )
    if num_out_tokens:
        kept = min(num_out_tokens, kept) if num_out_tokens > 0 else kept + num_out_tokens
    return tokens.index_select(0, order[:kept] // copies), places


def npu_moe_token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> Tensor:
    """Add up the copies of each token, weighted by probs: `out[t] = sum_k probs[t,k] *
    permuted[sorted_indices[t*K+k]]`. Differentiable.

    Shapes: permuted_tokens [M,H], sorted_indices [T*K], probs [T,K] -> [T,H]. Dropped copies are treated as zeros.

    Raises:
        RuntimeError: the shapes are invalid.
        NotImplementedError: padded_mode is requested.
    """
    _refuse_padded("npu_moe_token_unpermute", padded_mode)
    copies = 1 if probs is None else probs.shape[1]
    fit = probs is None or probs.numel() == sorted_indices.numel()
    if permuted_tokens.dim() != 2 or sorted_indices.dim() != 1 or not fit:
        raise RuntimeError(
            f"npu_moe_token_unpermute: expected permuted_tokens [M,H] and sorted_indices [T*{copies}], "
            f"but got shapes {tuple(permuted_tokens.shape)} and {tuple(sorted_indices.shape)}"
        )
    given = (permuted_tokens, sorted_indices, probs)
    if not is_fusible(given):
        return _added_up(*given)[0]
    rows = Result((sorted_indices.numel() // copies, permuted_tokens.shape[1]), permuted_tokens.dtype)
    return fused("npu_moe_token_unpermute", _added_up, (rows,), given, keep=slice(0))[0]


def _added_up(permuted: Tensor, sorted_indices: Tensor, probs: Tensor | None) -> tuple[Tensor]:
    places = sorted_indices.long()
    dropped = places >= permuted.shape[0]
    rows = permuted.index_select(0, places.masked_fill(dropped, 0)).masked_fill(dropped.unsqueeze(-1), 0)
    if probs is None:
        return (rows,)
    return ((rows.view(*probs.shape, -1) * probs.unsqueeze(-1)).sum(dim=1).to(permuted.dtype),)


def npu_moe_token_permute_with_routing_map(
    tokens: Tensor,
    routing_map: Tensor,
    *,
    probs: Tensor | None = None,
    num_out_tokens: int | None = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """For each expert in turn, copy the expert's tokens in their original order. Differentiable in tokens and probs.

    Shapes: tokens [T,H], routing_map [T,E] (bool or int8), probs [T,E]. With `drop_and_pad`, each expert gets
    `num_out_tokens / E` rows: first its own tokens, and then other tokens as padding.

    Returns:
        (permuted [M,H]; the probs of the permuted rows [M] or None; sorted_indices int32 [M]). Without drop_and_pad,
        sorted_indices contains the indices of the permuted rows, sorted by token. With drop_and_pad, it contains the
        token of each permuted row.

    Raises:
        RuntimeError: the shapes or dtypes are invalid, or num_out_tokens is invalid with drop_and_pad.
    """
    name = "npu_moe_token_permute_with_routing_map"
    if tokens.dim() != 2 or routing_map.dim() != 2 or routing_map.shape[0] != tokens.shape[0]:
        raise RuntimeError(
            f"{name}: expected tokens [T,H] and routing_map [T,E], but got shapes {tuple(tokens.shape)} and "
            f"{tuple(routing_map.shape)}"
        )
    if routing_map.dtype not in (torch.bool, torch.int8):
        raise RuntimeError(f"{name}: routing_map must be bool or int8, but is {routing_map.dtype}")
    if probs is not None and probs.shape != routing_map.shape:
        raise RuntimeError(
            f"{name}: probs must have shape {tuple(routing_map.shape)}, but has shape {tuple(probs.shape)}"
        )
    if num_out_tokens is not None and num_out_tokens < 0:
        raise RuntimeError(f"{name}: num_out_tokens must not be negative, but is {num_out_tokens}")
    count, experts = routing_map.shape
    by_expert = routing_map.bool().t()
    if drop_and_pad:
        if not num_out_tokens or num_out_tokens % experts or num_out_tokens // experts > count:
            raise RuntimeError(
                f"{name}: with drop_and_pad, num_out_tokens must be a positive multiple of the number of experts "
                f"({experts}), and at most {count} * {experts}, but is {num_out_tokens}"
            )
        first = by_expert.to(torch.int8).sort(dim=-1, descending=True, stable=True)[1][:, : num_out_tokens // experts]
        rows = first.reshape(-1)
        expert = torch.arange(experts, device=tokens.device).repeat_interleave(first.shape[1])
        places = rows
    else:
        expert, rows = by_expert.nonzero(as_tuple=True)
        places = torch.argsort(rows, stable=True)
    taken = None if probs is None else probs[rows, expert]
    return tokens.index_select(0, rows), taken, places.to(torch.int32)


def npu_moe_token_unpermute_with_routing_map(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: list[int],
    *,
    probs: Tensor | None = None,
    routing_map: Tensor | None = None,
    drop_and_pad: bool = False,
) -> Tensor:
    """Add up the copies of each token that `npu_moe_token_permute_with_routing_map` created, weighted by probs.
    Differentiable.

    Shapes: permuted_tokens [M,H], sorted_indices [M], probs and routing_map [T,E], restore_shape (T,H) -> [T,H].
    Without drop_and_pad, every token must have the same number of experts.

    Raises:
        RuntimeError: the shapes do not match, or probs are passed without the routing map.
    """
    name = "npu_moe_token_unpermute_with_routing_map"
    count = int(restore_shape[0])
    places = sorted_indices.long()
    if drop_and_pad:
        rows = permuted_tokens
        if probs is not None:
            expert = torch.arange(probs.shape[1], device=places.device).repeat_interleave(
                len(places) // probs.shape[1]
            )
            rows = rows * probs[places, expert].unsqueeze(-1)
        zeros = torch.zeros(tuple(restore_shape), dtype=rows.dtype, device=rows.device)
        return zeros.index_add(0, places, rows).to(permuted_tokens.dtype)
    if permuted_tokens.shape[0] % count:
        raise RuntimeError(
            f"{name}: the {permuted_tokens.shape[0]} rows of permuted_tokens cannot be divided "
            f"equally among {count} tokens"
        )
    rows = permuted_tokens.index_select(0, places).view(count, -1, permuted_tokens.shape[-1])
    if probs is not None:
        if routing_map is None:
            raise RuntimeError(f"{name}: probs requires routing_map")
        rows = rows * probs[routing_map.bool()].view(count, -1, 1)
    return rows.sum(dim=1).to(permuted_tokens.dtype)


def _npu_moe_token_unpermute_with_routing_map(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: list[int],
    *,
    probs: Tensor | None = None,
    routing_map: Tensor | None = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Run `npu_moe_token_unpermute_with_routing_map`, and also return the tensors that its gradient needs with
    drop_and_pad.

    Returns:
        ([T,H]; out_index int32 [M], the indices of the permuted rows, sorted by token; permuted_token_id int32 [M],
        the tokens of these rows; the probs of the permuted rows [M] or None).

    Raises:
        RuntimeError: in the same cases as npu_moe_token_unpermute_with_routing_map.
    """
    back = npu_moe_token_unpermute_with_routing_map(
        permuted_tokens,
        sorted_indices,
        restore_shape,
        probs=probs,
        routing_map=routing_map,
        drop_and_pad=drop_and_pad,
    )
    expert, token = _expert_and_token(sorted_indices, routing_map, probs, drop_and_pad, int(restore_shape[0]))
    taken = None if probs is None or expert is None else probs[token, expert]
    token_id, out_index = (
        sorted_indices.sort(stable=True) if drop_and_pad else (token.sort(stable=True)[0], sorted_indices)
    )
    return back, out_index.to(torch.int32), token_id.to(torch.int32), taken


def npu_moe_token_permute_with_routing_map_grad(
    permuted_token_out_grad: Tensor,
    probs_grad: Tensor | None,
    sorted_indices: Tensor,
    routing_map: Tensor,
    experts_num: int,
    tokens_num: int,
    drop_and_pad: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute the gradients of `npu_moe_token_permute_with_routing_map`, as in op-plugin's
    MoeTokenPermuteWithRoutingMapGradOpApi.cpp.

    Shapes: permuted_token_out_grad [M,H], probs_grad [M] or None, sorted_indices [M], routing_map [T,E].

    Returns:
        (the gradient of the tokens [T,H], the gradient of the probs [T,E] or None).

    Raises:
        RuntimeError: experts_num and tokens_num do not match the routing map.
    """
    if tuple(routing_map.shape) != (tokens_num, experts_num):
        raise RuntimeError(
            f"npu_moe_token_permute_with_routing_map_grad: expected routing_map [{tokens_num},{experts_num}], but got "
            f"{tuple(routing_map.shape)}"
        )
    expert, token = _expert_and_token(sorted_indices, routing_map, None, drop_and_pad, tokens_num)
    zeros = permuted_token_out_grad.new_zeros(tokens_num, permuted_token_out_grad.shape[1])
    of_tokens = zeros.index_add(0, token, permuted_token_out_grad)
    if probs_grad is None or expert is None:
        return of_tokens, None
    return of_tokens, probs_grad.new_zeros(tokens_num, experts_num).index_put((token, expert), probs_grad)


def npu_moe_token_unpermute_with_routing_map_grad(
    unpermuted_tokens_grad: Tensor,
    out_index: Tensor,
    permuted_token_id: Tensor,
    routing_map: Tensor | None,
    permuted_tokens: Tensor | None,
    probs: Tensor | None,
    drop_and_pad: bool,
    restore_shape: list[int],
) -> tuple[Tensor, Tensor | None]:
    """Compute the gradients of `npu_moe_token_unpermute_with_routing_map`, as in op-plugin's
    MoeTokenUnpermuteWithRoutingMapGradKernelNpuOpApi.cpp.

    Shapes: unpermuted_tokens_grad [T,H], out_index [M] (the indices of the permuted rows, sorted by token),
    permuted_token_id [M] (the tokens of these rows; read only with drop_and_pad), routing_map and probs [T,E],
    permuted_tokens [M,H].

    Returns:
        (the gradient of the permuted tokens [M,H], the gradient of the probs [T,E] or None).

    Raises:
        RuntimeError: probs are passed without the permuted tokens or the routing map.
    """
    name = "npu_moe_token_unpermute_with_routing_map_grad"
    rows = out_index.long()
    if drop_and_pad:
        rows = torch.empty_like(rows).index_copy(0, rows, permuted_token_id.long())
    expert, token = _expert_and_token(rows, routing_map, probs, drop_and_pad, int(restore_shape[0]))
    of_rows = unpermuted_tokens_grad.index_select(0, token)
    if probs is None:
        return of_rows, None
    if permuted_tokens is None or expert is None:
        raise RuntimeError(f"{name}: probs requires permuted_tokens and routing_map")
    along = (of_rows * permuted_tokens).sum(-1).to(unpermuted_tokens_grad.dtype)
    of_probs = along.new_zeros(probs.shape).index_put((token, expert), along)
    return (of_rows * probs[token, expert].unsqueeze(-1)).to(unpermuted_tokens_grad.dtype), of_probs


def _expert_and_token(
    sorted_indices: Tensor, routing_map: Tensor | None, probs: Tensor | None, drop_and_pad: bool, count: int
) -> tuple[Tensor | None, Tensor]:
    """Return the expert of each permuted row, or None if it is unknown, and the token of each row, one of `count`."""
    places = sorted_indices.long()
    if drop_and_pad:
        shape = routing_map if routing_map is not None else probs
        if shape is None:
            return None, places
        experts = torch.arange(shape.shape[1], device=places.device)
        return experts.repeat_interleave(len(places) // shape.shape[1]), places
    if routing_map is not None:
        expert, token = routing_map.bool().t().nonzero(as_tuple=True)
        return expert, token
    # The rows are sorted by token, with the same number of rows for each token.
    return None, torch.argsort(places) // (len(places) // count)


def _refuse_padded(name: str, padded_mode: bool) -> None:
    if padded_mode:
        raise NotImplementedError(f"{name}: virtual-ascend does not implement padded_mode")


def npu_grouped_matmul(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    *,
    bias: Sequence[Tensor] | None = None,
    group_list: Tensor | Sequence[int] | None = None,
    split_item: int = 0,
    group_type: int | None = None,
    group_list_type: int = 0,
    output_dtype: int | torch.dtype | None = None,
) -> list[Tensor]:
    """Grouped matrix products. Has no backward pass (callers wrap it in an autograd.Function).

    The products depend on group_type:

    - -1: x[i] [M_i,K_i] @ weight[i] [K_i,N_i].
    - 0: each of E groups of rows of x [M,K] @ the group's own weight in [E,K,N] -> [M,N].
    - 2: each of E groups of columns of x [M,K] @ the same group of rows of weight [K,N] -> [E,M,N].

    `group_list` contains the end of each group (group_list_type 0) or the size of each group (group_list_type 1).
    split_item 0 and 1 return one tensor for each group, and split_item 2 and 3 return a single tensor. If a
    `group_list` tensor ends before the last row of x, the remaining rows of the single result are zeros here, whereas
    an NPU does not write them.

    Raises:
        RuntimeError: the groups do not cover x (except in the case above), a type is unknown, or the backward pass is
            run.
        NotImplementedError: `group_list` consists of (index, count) pairs.
    """
    if group_list_type == 2:
        raise _unwritten("npu_grouped_matmul", "group_list_type=2")
    if split_item not in (0, 1, 2, 3):
        raise RuntimeError(f"npu_grouped_matmul: split_item must be 0, 1, 2 or 3, but got {split_item}")
    kind = -1 if group_type is None else group_type
    _check_form(x, weight, group_list, split_item, group_type)
    if kind not in (-1, 0, 2):
        raise RuntimeError(f"npu_grouped_matmul: group_type must be -1, 0 or 2, but got {kind}")

    bounds: list[tuple[int, int]] = []
    unwritten = 0
    if kind != -1:
        extent = x[0].shape[0] if kind == 0 else x[0].shape[1]
        may_end = kind == 0 and split_item in (2, 3) and isinstance(group_list, Tensor)
        bounds = list(pairwise([0, *_ends(group_list, group_list_type, extent, may_end)]))
        unwritten = extent - bounds[-1][1]
    given = (*x, *weight, *(bias or ()))

    def compute(*tensors: Tensor) -> tuple[Tensor, ...]:
        x_, weight_ = tensors[: len(x)], tensors[len(x) : len(x) + len(weight)]
        bias_ = tensors[len(x) + len(weight) :] or None
        if kind == -1:
            results = _each(x_, weight_, bias_)
        else:
            results = _rows(x_[0], weight_, bias_, bounds) if kind == 0 else _columns(x_[0], weight_[0], bounds)
        if kind != 2 and split_item in (2, 3):
            results = [pad(torch.cat(results), (0, 0, 0, unwritten))]
        if output_dtype is None:
            return tuple(results)
        return tuple(result.to(dtype_of("npu_grouped_matmul", output_dtype)) for result in results)

    def by_one_kernel() -> tuple[Tensor, ...]:
        if not is_fusible(given):
            return compute(*given)
        looks = compute(*(torch.empty_like(tensor, device="meta") for tensor in given))
        # Each row is multiplied by the weight of one group, and the weights of all groups have the same width.
        flops = sum(2.0 * each.numel() * weight[0].shape[-1] for each in x)
        shapes = [Result(look.shape, look.dtype) for look in looks]
        return computed("npu_grouped_matmul", compute, shapes, given, flops=flops)

    return list(without_formula("npu_grouped_matmul", given, by_one_kernel))


def npu_grouped_matmul_add_(
    input: Tensor,
    x: Tensor,
    weight: Tensor,
    group_list: Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int = 0,
) -> Tensor:
    """`input[e] += x[rows of e]^T @ weight[rows of e]` in place. Callers use this operator to add up the gradients of
    experts. Has no backward pass.

    Shapes: input float32 [E,K,N] or [E*K,N], x [M,K], weight [M,N], group_list int64 [E] (cumulative ends or, with
    group_list_type 1, counts).

    Raises:
        RuntimeError: the groups do not cover x.
        NotImplementedError: an unsupported transposition or group_type is requested.
    """
    if not transpose_x or transpose_weight or group_type != 2:
        raise NotImplementedError(
            "npu_grouped_matmul_add_: virtual-ascend implements only transpose_x=True, transpose_weight=False, and "
            "group_type=2"
        )
    ends = _ends(group_list, group_list_type, x.shape[0])
    with torch.no_grad():
        sums = input.view(len(ends), x.shape[1], weight.shape[1])
        for total, (start, end) in zip(sums, pairwise([0, *ends]), strict=True):
            total.add_((x[start:end].float().t() @ weight[start:end].float()).to(total.dtype))
    return input


def _check_form(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    group_list: Tensor | Sequence[int] | None,
    split_item: int,
    group_type: int | None,
) -> None:
    """Raise RuntimeError for arguments that the wheel rejects before it calls CANN."""
    name = "npu_grouped_matmul"
    if group_type is None and not isinstance(group_list, list | tuple):
        raise RuntimeError(f"{name}: Requires manual passing group_type, current is None.")
    if split_item in (0, 1) and group_type in (0, 2) and isinstance(group_list, Tensor) and len(x) > 1:
        raise RuntimeError(
            f"{name}: with split_item {split_item} and a group_list tensor, x must contain exactly one tensor"
        )
    if split_item in (0, 1) and group_type == 0 and isinstance(group_list, list | tuple):
        raise RuntimeError(
            f"{name}: if group_list is a list of integers, split_item must be 2 or 3, but is {split_item}"
        )
    if split_item in (0, 1) and group_type == 2:
        raise RuntimeError(f"{name}: group_type 2 requires split_item 2 or 3, but got {split_item}")
    if split_item in (2, 3) and group_type == 2 and len(weight) != len(x):
        raise RuntimeError(
            f"{name}: with group_type 2, weight must contain the same number of tensors as x, but weight has "
            f"{len(weight)}, and x has {len(x)}"
        )
    if len({tensor.dtype for tensor in (*x, *weight)}) > 1:
        raise RuntimeError(
            f"{name}: x and weight must have the same dtype, but have {x[0].dtype} and {weight[0].dtype}"
        )
    if group_type == -1 and any(matrix.dim() != 2 for matrix in weight):
        raise RuntimeError(f"{name}: with group_type -1, each weight must have 2 dimensions")


def _ends(
    group_list: Tensor | Sequence[int] | None, kind: int, extent: int, may_end_before: bool = False
) -> list[int]:
    if group_list is None:
        raise RuntimeError("npu_grouped_matmul: group_type 0 and 2 require a group_list")
    if isinstance(group_list, Tensor) and group_list.dim() != 1:
        raise RuntimeError(
            f"npu_grouped_matmul: with group_list_type {kind}, group_list must have one dimension, but its shape is "
            f"{tuple(group_list.shape)}"
        )
    numbers = [int(n) for n in (group_list.tolist() if isinstance(group_list, Tensor) else group_list)]
    if kind not in (0, 1):
        raise RuntimeError(f"npu_grouped_matmul: group_list_type must be 0, 1 or 2, but got {kind}")
    ends = numbers if kind == 0 else [sum(numbers[: i + 1]) for i in range(len(numbers))]
    covers = bool(ends) and (ends[-1] == extent or (may_end_before and ends[-1] < extent))
    if not covers or any(b < a for a, b in pairwise([0, *ends])):
        raise RuntimeError(
            f"npu_grouped_matmul: the ends in group_list must not decrease, and the last end must be {extent}, but "
            f"the ends are {ends}"
        )
    return ends


def _each(x: Sequence[Tensor], weight: Sequence[Tensor], bias: Sequence[Tensor] | None) -> list[Tensor]:
    if len(x) != len(weight):
        raise RuntimeError(f"npu_grouped_matmul: x has {len(x)} tensors, but weight has {len(weight)}")
    return [_product(a, w, None if bias is None else bias[i]) for i, (a, w) in enumerate(zip(x, weight, strict=True))]


def _rows(
    x: Tensor, weight: Sequence[Tensor], bias: Sequence[Tensor] | None, bounds: list[tuple[int, int]]
) -> list[Tensor]:
    weights = list(weight[0]) if len(weight) == 1 and weight[0].dim() == 3 else list(weight)
    if len(weights) != len(bounds):
        raise RuntimeError(
            f"npu_grouped_matmul: expected one weight for each of {len(bounds)} groups, but got {len(weights)} weights"
        )
    biases = None if bias is None else (list(bias[0]) if len(bias) == 1 and bias[0].dim() == 2 else list(bias))
    return [
        _product(x[start:end], w, None if biases is None else biases[i])
        for i, ((start, end), w) in enumerate(zip(bounds, weights, strict=True))
    ]


def _columns(x: Tensor, weight: Tensor, bounds: list[tuple[int, int]]) -> list[Tensor]:
    return [torch.stack([x[:, start:end] @ weight[start:end] for start, end in bounds])]


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight if bias is None else (x @ weight + bias).to(x.dtype)
