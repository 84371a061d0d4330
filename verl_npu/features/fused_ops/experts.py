"""Mixtures of experts through torch_npu's permutation of tokens and its grouped matrix product."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...registry.source.probe import AllOf, Defines, Mentions, Never, Not, Probe
from .feature import LINK, NPU_PATCH, UPSTREAM_DOES_IT, fused_ops, modeling, named
from .grouped import LONGEST, grouped_linear
from .mlp import is_silu
from .operator import is_plain, operator

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["dense_experts", "expert_block", "fused_experts", "upstream_experts", "vision_experts"]

_OPERATORS = ("npu_grouped_matmul", "npu_swiglu")
_PLAIN = "tokens are sorted by plain torch"


@dataclass(frozen=True, slots=True)
class _Weights:
    """The weights of all experts, as they lie in memory."""

    up: tuple[Sequence[Tensor], ...]
    """Gate and up: two sequences where they are apart, one where each weight holds both."""
    down: Sequence[Tensor]
    experts: int
    transposed: bool


def expert_block(original: Callable[..., Any], block: Any, hidden_states: Tensor) -> Any:
    """A block with a list of experts: hidden_states [batch, seqlen, width] -> (as that, logits [tokens, experts]).

    Experts with adapters, hooks, a wrapper of their own or weights in another dtype go upstream's way, one by one.
    """
    import torch

    weights = _of_list(block.experts) if _available(hidden_states) else None
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
    if weights is None or not _goes_with(tokens, weights):
        return original(block, hidden_states)
    logits = block.gate(tokens)
    routing, selected = torch.topk(torch.softmax(logits, dim=1, dtype=torch.float), block.top_k, dim=-1)
    if block.norm_topk_prob:
        routing = routing / routing.sum(dim=-1, keepdim=True)
    routed = _routed(tokens, selected, routing.to(tokens.dtype), weights)
    return routed.view(hidden_states.shape), logits


def fused_experts(
    original: Callable[..., Any], experts: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Any:
    """Experts in two weights, as transformers 5 has them.

    hidden_states [tokens, width], top_k_index and top_k_weights [tokens, chosen] -> [tokens, width].
    """
    weights = _of_tensors(experts, transposed=True) if _available(hidden_states) else None
    if weights is None or not _goes_with(hidden_states, weights):
        return original(experts, hidden_states, top_k_index, top_k_weights)
    return _routed(hidden_states, top_k_index, top_k_weights.to(hidden_states.dtype), weights)


def dense_experts(
    original: Callable[..., Any], experts: Any, hidden_states: Tensor, routing_weights: Tensor, router_indices: Tensor
) -> Any:
    """Experts in two weights, as Qwen3-VL-MoE of transformers 4.57 has them.

    hidden_states [batch, seqlen, width], routing_weights [tokens, experts], router_indices [tokens, chosen] ->
    [batch, seqlen, width].
    """
    weights = _of_tensors(experts, transposed=False) if _available(hidden_states) else None
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
    if weights is None or not _goes_with(tokens, weights):
        return original(experts, hidden_states, routing_weights, router_indices)
    chosen = routing_weights.gather(1, router_indices)
    return _routed(tokens, router_indices, chosen.to(tokens.dtype), weights).view(hidden_states.shape)


def upstream_experts(
    original: Callable[..., Any], experts: Any, hidden_states: Tensor, routing_weights: Tensor, router_indices: Tensor
) -> Any:
    """The same experts in upstream's own class, whose block may give the weights of the chosen alone.

    hidden_states [batch, seqlen, width], routing_weights [tokens, chosen or experts], router_indices [tokens, chosen]
    -> [batch, seqlen, width].
    """
    import torch

    if routing_weights.shape[1] != experts.num_experts:
        wide = routing_weights.new_zeros(routing_weights.shape[0], experts.num_experts)
        routing_weights = torch.scatter(wide, 1, router_indices, routing_weights)
    return dense_experts(original, experts, hidden_states, routing_weights, router_indices)


def vision_experts(original: Callable[..., Any], experts: Any, *args: Any, **kwargs: Any) -> Any:
    """The experts of Qwen3-VL-MoE, in either of the two forms above."""
    return (fused_experts if _takes_indices(original) else dense_experts)(original, experts, *args, **kwargs)


@lru_cache(maxsize=16)
def _takes_indices(forward: Callable[..., Any]) -> bool:
    return "top_k_index" in inspect.signature(forward).parameters


def _available(hidden_states: Tensor) -> bool:
    # Each is looked at, so that each that is missing is named.
    return None not in [operator(name, hidden_states) for name in _OPERATORS]


def _of_list(experts: Sequence[Any]) -> _Weights | None:
    import torch

    projections = []
    for expert in experts:
        linears: list[Any] = [getattr(expert, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
        if not all(type(linear) is torch.nn.Linear and linear.bias is None for linear in linears):
            return None
        if any(_is_watched(module) for module in (expert, *linears)) or not is_silu(expert.act_fn):
            return None
        projections.append(tuple(linear.weight for linear in linears))
    if not projections or len(projections) > LONGEST or not is_plain(*(w for p in projections for w in p)):
        return None
    gate, up, down = zip(*projections, strict=True)
    return _Weights((gate, up), down, len(projections), transposed=True)


def _of_tensors(experts: Any, *, transposed: bool) -> _Weights | None:
    up, down = experts.gate_up_proj, experts.down_proj
    if not is_plain(up, down) or not is_silu(experts.act_fn):
        return None
    return _Weights(((up,),), (down,), up.shape[0], transposed)


def _is_watched(module: Any) -> bool:
    # Whoever hooks a module or gives it a forward of its own wants it called.
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in hooks) or "forward" in vars(module)


def _goes_with(tokens: Tensor, weights: _Weights) -> bool:
    # The product wants one dtype; autocast casts, and a cast is a copy that the loop over experts makes as well.
    import torch

    if torch.is_autocast_enabled(tokens.device.type):
        return True
    everything = (w for part in (*weights.up, weights.down) for w in part)
    return all(weight.dtype == tokens.dtype for weight in everything)


def _routed(tokens: Tensor, selected: Tensor, routing: Tensor, weights: _Weights) -> Tensor:
    """tokens [tokens, width], selected and routing [tokens, chosen] -> [tokens, width] in the dtype of `tokens`."""
    import torch
    import torch_npu

    device = tokens.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tokens.dtype
    # Counted by adding, for bincount and one_hot wait for the device to learn the largest index.
    chosen = selected.reshape(-1)
    counts = torch.zeros(weights.experts, dtype=torch.int64, device=tokens.device)
    ends = counts.scatter_add_(0, chosen, torch.ones_like(chosen)).cumsum(0)
    permuted, places = _permuted(tokens.to(dtype), selected)
    parts = [
        grouped_linear(permuted, ends, [w.to(dtype) for w in part], transposed=weights.transposed)
        for part in weights.up
    ]
    hidden = torch_npu.npu_swiglu(parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1), dim=-1)
    out = grouped_linear(hidden, ends, [w.to(dtype) for w in weights.down], transposed=weights.transposed)
    return _mixed(out.to(tokens.dtype), places, routing)


def _permuted(tokens: Tensor, selected: Tensor) -> tuple[Tensor, Tensor]:
    """tokens [tokens, width] -> (copies in the order of their experts [tokens * chosen, width], where each went)."""
    import torch
    import torch_npu

    # torch_npu has the operator from 2.7.1 on.
    if operator("npu_moe_token_permute", tokens, _PLAIN) is not None:
        made: tuple[Tensor, Tensor] = torch_npu.npu_moe_token_permute(tokens, selected.to(torch.int32))
        return made
    # NPUs sort floats much faster than integers, and the numbers of experts are exact in them.
    order = torch.argsort(selected.reshape(-1).float(), stable=True)
    rows = torch.arange(order.numel(), device=order.device)
    return tokens.index_select(0, order // selected.shape[1]), torch.empty_like(order).scatter_(0, order, rows)


def _mixed(rows: Tensor, places: Tensor, routing: Tensor) -> Tensor:
    """rows [tokens * chosen, width] back in place, weighted by routing [tokens, chosen] and added: [tokens, width]."""
    import torch_npu

    if operator("npu_moe_token_unpermute", rows, _PLAIN) is not None:
        made: Tensor = torch_npu.npu_moe_token_unpermute(rows, places, probs=routing)
        return made
    copies = rows.index_select(0, places.long()).unflatten(0, tuple(routing.shape))
    return (copies * routing.unsqueeze(-1)).sum(dim=1)


def _declare() -> None:
    why = "a loop over the experts that waits for the device in every round; upstream's own fused block returns the "
    why += "wrong rank for a batch above one, and copies all weights of all experts three times in every forward"
    how = (
        "permute, grouped products on the weights as they lie, and unpermute; where experts are not plain, upstream's"
    )
    for model, owner, implementation, marks in (
        ("qwen3_moe", "Qwen3MoeSparseMoeBlock", expert_block, ("norm_topk_prob", "one_hot")),
        ("qwen3_moe", "Qwen3MoeExperts", fused_experts, ("top_k_weights", "gate_up_proj")),
        ("qwen3_vl_moe", "Qwen3VLMoeTextExperts", vision_experts, ("gate_up_proj", "down_proj", "one_hot")),
    ):
        target = f"{modeling(model)}:{owner}.forward"
        done: Probe = UPSTREAM_DOES_IT
        if implementation is vision_experts:
            # Upstream puts a block of its own in their place, of transformers 4's layout.
            done = AllOf(UPSTREAM_DOES_IT, Not(Mentions(target, "top_k_weights")))
        fused_ops.wrap(
            target,
            why=why,
            how=how,
            link="https://github.com/volcengine/verl/pull/5191",
            retired_by=done,
            requires=AllOf(*(Mentions(target, mark) for mark in marks)),
        )(named(f"{model}_{owner}", implementation))
    target = f"{NPU_PATCH}:NPUQwen3VLMoeTextExperts.forward"
    fused_ops.wrap(
        target,
        why="upstream's own class for these experts looks up the probabilities of the chosen, which are all that it "
        "gets in training, by the numbers of their experts: wrong ones, or beyond the end; and in evaluation it "
        "computes every expert for every token",
        how=how,
        link=LINK,
        retired_by=UPSTREAM_DOES_IT,
        requires=Defines(target),
    )(named("npu_patch_NPUQwen3VLMoeTextExperts", upstream_experts))


@fused_ops.wrap(
    f"{NPU_PATCH}:apply_npu_patches",
    why="upstream puts in a block whose expert weights are [experts, width, inner], as transformers 4 had them: those "
    "of transformers 5 are the other way round, so a checkpoint does not fit",
    how="where transformers has them the other way round, its own block stays, with the fused experts above in it",
    link=LINK,
    retired_by=Never("no release of upstream does it"),
    requires=Mentions(f"{NPU_PATCH}:_patch_qwen3_vl_moe", "NPUQwen3VLMoeTextSparseMoeBlock"),
)
def block_of_this_layout(original: Callable[[], None]) -> None:
    """Patch the models; the block of Qwen3-VL-MoE stays transformers' own where upstream's has another layout."""
    module: Any = importlib.import_module(modeling("qwen3_vl_moe"))
    own = module.Qwen3VLMoeTextSparseMoeBlock
    original()
    if _takes_indices(module.Qwen3VLMoeTextExperts.forward):
        module.Qwen3VLMoeTextSparseMoeBlock = own


_declare()
