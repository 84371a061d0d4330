"""The arithmetic that op-plugin's attention operators share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["How", "attend", "check_heads", "through"]


@dataclass(frozen=True, slots=True)
class How:
    """What is done to the scores."""

    scale: float
    keep_prob: float = 1.0
    pse: Tensor | None = None
    sink: Tensor | None = None


def check_heads(heads: int, key_heads: int) -> None:
    """Raise RuntimeError unless the heads of query can share those of key."""
    if heads % key_heads:
        raise RuntimeError(
            f"npu_fusion_attention: the heads of query ({heads}) must be a multiple of those of key ({key_heads})"
        )


def attend(query: Tensor, key: Tensor, value: Tensor, how: How, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """query [B,N,Sq,D], key and value [B,Nkv,Skv,D] -> attention [B,N,Sq,D], row maximum and sum [B,N,Sq,8]."""
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
    weights = weights / total.clamp_min(torch.finfo(torch.float32).tiny)  # a row that keeps nothing: zeros, not NaN
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
    """The gradient of `attend`, from its result [B,N,Sq,D] and its rows' maximum and sum [B,N,Sq,1]: of query, key,
    value, pse and sink, the last two empty if there are none."""
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
