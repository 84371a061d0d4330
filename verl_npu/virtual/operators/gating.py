"""Which experts a token goes to: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_moe_gating_top_k_softmax.md
and torch_npu-npu_moe_gating_top_k.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .gradient import without_formula


def npu_moe_gating_top_k_softmax(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """The k greatest of softmax(x), formed in float32 and not normalised again; no gradient.

    Shapes: x [..,E], finished bool [..]: rows that go to no expert get the index E.

    Returns:
        (weights [..,k] of x's dtype, experts int32 [..,k], row_idx int32 [..,k]: column by column).

    Raises:
        RuntimeError: k out of range, `finished` of another shape, and in backward.
    """
    if x.dim() not in (2, 3) or x.dtype not in _FLOATS:
        raise RuntimeError(
            "npu_moe_gating_top_k_softmax: x must have 2 or 3 dimensions and be float16, float32 or bfloat16, but is "
            f"{tuple(x.shape)} {x.dtype}"
        )
    if not 0 < k <= x.shape[-1]:
        raise RuntimeError(f"npu_moe_gating_top_k_softmax: k must be 1 to {x.shape[-1]}, but is {k}")
    if finished is not None and finished.shape != x.shape[:-1]:
        raise RuntimeError(
            f"npu_moe_gating_top_k_softmax: finished must be {tuple(x.shape[:-1])}, but is {tuple(finished.shape)}"
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
    input_ids: Tensor | None = None,
    tid2eid: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:
    """The k greatest of softmax(x) (norm_type 0) or sigmoid(x) (1), from the k_group best of group_count groups of
    experts; no gradient.

    Shapes: x [T,E], bias [E]: it steers the choice only. A group is as good as its best expert (group_select_mode 0)
    or its two best together (1). Weights of sigmoids are divided by their sum; all are scaled.

    Returns:
        (weights [T,k] of x's dtype, experts int32 [T,k], scores float32 [T,E], empty without out_flag).

    Raises:
        RuntimeError: an argument out of range, and in backward.
        NotImplementedError: input_ids or tid2eid: experts by token id.
    """
    if input_ids is not None or tid2eid is not None:
        raise NotImplementedError(
            "npu_moe_gating_top_k: input_ids and tid2eid are not implemented by the virtual Ascend"
        )
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
    """vllm-ascend's own `npu_moe_gating_top_k`, which with renorm 1 divides the weights of a softmax by their sum as
    well: csrc/moe/moe_gating_top_k of v0.13.0 to v0.23.0.

    Returns:
        (weights [T,k] of x's dtype, experts int32 [T,k], scores float32 [T,E], undefined without out_flag).

    Raises:
        RuntimeError: an argument out of range, and in backward.
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
    """Of how many groups of experts how many are looked at, and what a group is worth."""

    count: int
    chosen: int
    mode: int

    def limits(self, k: int, experts: int) -> Sequence[tuple[str, int, bool]]:
        """Each argument's name, its value, and whether that is within its range."""
        size = experts // max(self.count, 1)
        return (
            ("group_count", self.count, self.count > 0 and experts % max(self.count, 1) == 0),
            ("k_group", self.chosen, 0 < self.chosen <= self.count and k <= self.chosen * size),
            ("group_select_mode", self.mode, self.mode in (0, 1)),
        )

    def best(self, scores: Tensor) -> Tensor:
        """The scores [T,E], those of experts outside the best groups -inf."""
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
    """The weights of the k greatest, divided by their sum and `eps` unless that is None, their experts, and all
    scores."""
    scores = torch.sigmoid(x.float()) if norm_type else torch.softmax(x.float(), dim=-1)
    chosen = _greatest(groups.best(scores if bias is None else scores + bias.float()), k)
    weights = scores.gather(-1, chosen)
    return weights if eps is None else weights / (weights.sum(-1, keepdim=True) + eps), chosen, scores


def _check_scores(name: str, x: Tensor, bias: Tensor | None) -> None:
    if x.dim() != 2 or x.dtype not in _FLOATS:
        raise RuntimeError(
            f"{name}: x must be [T,E] and float16, float32 or bfloat16, but is {tuple(x.shape)} {x.dtype}"
        )
    if bias is not None and (bias.dim() != 1 or bias.dtype != x.dtype):
        raise RuntimeError(f"{name}: bias must be [E] and {x.dtype} as x, but is {tuple(bias.shape)} {bias.dtype}")


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
