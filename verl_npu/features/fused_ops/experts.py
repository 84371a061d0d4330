"""Mixtures of experts through torch_npu's permutation of tokens and its grouped matrix product."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from ...ascend.operators import GROUPED_MATMUL_TENSORS
from ...registry.source.probe import AllOf, Defines, Mentions, Not, Probe
from .feature import NPU_PATCH, UPSTREAM_DOES_IT, declare, modeling, upstream_assigns
from .mlp import Activation, is_silu
from .operator import is_plain
from .routing import Weights, has_operators, routed

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "NEXT_BLOCK",
    "QWEN3_MOE_BLOCK",
    "VISION_BLOCK",
    "dense_experts",
    "expert_block",
    "fused_experts",
    "takes_indices",
    "upstream_experts",
    "vision_experts",
]

Result = TypeVar("Result")


class Expert(Protocol):
    """One expert of a list, with linear layers gate_proj, up_proj and down_proj."""

    act_fn: Activation


class Block(Protocol):
    """A block with a list of experts."""

    experts: Sequence[Expert]
    gate: Callable[[Tensor], Tensor]
    top_k: int
    norm_topk_prob: bool


class Experts(Protocol):
    """All experts of a block, in two weights."""

    gate_up_proj: Tensor
    down_proj: Tensor
    act_fn: Activation
    num_experts: int


Forward: TypeAlias = "Callable[..., Tensor]"


def expert_block(
    original: Callable[[Block, Tensor], Result], block: Block, hidden_states: Tensor
) -> Result | tuple[Tensor, Tensor]:
    """A block with a list of experts: hidden_states [batch, seqlen, width] -> (as that, logits [tokens, experts]).

    Upstream's loop runs if experts have adapters, hooks, a wrapper of their own or weights in another dtype.
    """
    import torch

    weights = _weights_of_list(block.experts) if has_operators(hidden_states) else None
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
    if weights is None or not weights.go_with(tokens):
        return original(block, hidden_states)
    logits = block.gate(tokens)
    routing, selected = torch.topk(torch.softmax(logits, dim=1, dtype=torch.float), block.top_k, dim=-1)
    if block.norm_topk_prob:
        routing = routing / routing.sum(dim=-1, keepdim=True)
    out = routed(tokens, selected, routing.to(tokens.dtype), weights)
    return out.view(hidden_states.shape), logits


def fused_experts(
    original: Forward, experts: Experts, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Experts in two weights, as transformers 5 has them.

    hidden_states [tokens, width], top_k_index and top_k_weights [tokens, chosen] -> [tokens, width].
    """
    weights = _weights_of_tensors(experts, transposed=True) if has_operators(hidden_states) else None
    if weights is None or not weights.go_with(hidden_states):
        return original(experts, hidden_states, top_k_index, top_k_weights)
    return routed(hidden_states, top_k_index, top_k_weights.to(hidden_states.dtype), weights)


def dense_experts(
    original: Forward, experts: Experts, hidden_states: Tensor, routing_weights: Tensor, router_indices: Tensor
) -> Tensor:
    """Experts in two weights, as Qwen3-VL-MoE of transformers 4.57 has them.

    hidden_states [batch, seqlen, width], routing_weights [tokens, experts], router_indices [tokens, chosen] ->
    [batch, seqlen, width].
    """
    weights = _weights_of_tensors(experts, transposed=False) if has_operators(hidden_states) else None
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
    if weights is None or not weights.go_with(tokens):
        return original(experts, hidden_states, routing_weights, router_indices)
    chosen = routing_weights.gather(1, router_indices)
    return routed(tokens, router_indices, chosen.to(tokens.dtype), weights).view(hidden_states.shape)


def upstream_experts(
    original: Forward, experts: Experts, hidden_states: Tensor, routing_weights: Tensor, router_indices: Tensor
) -> Tensor:
    """The same experts in upstream's own class, which may get the routing weights of the chosen experts only.

    hidden_states [batch, seqlen, width], routing_weights [tokens, chosen or experts], router_indices [tokens, chosen]
    -> [batch, seqlen, width].
    """
    import torch

    if routing_weights.shape[1] != experts.num_experts:
        wide = routing_weights.new_zeros(routing_weights.shape[0], experts.num_experts)
        routing_weights = torch.scatter(wide, 1, router_indices, routing_weights)
    return dense_experts(original, experts, hidden_states, routing_weights, router_indices)


def vision_experts(original: Forward, experts: Experts, *args: Tensor, **kwargs: Tensor) -> Tensor:
    """The experts of Qwen3-VL-MoE, in the form that this version of transformers has."""
    return (fused_experts if takes_indices(original) else dense_experts)(original, experts, *args, **kwargs)


@lru_cache(maxsize=16)
def takes_indices(forward: Callable[..., object]) -> bool:
    """Return whether the experts get their tokens' experts and weights by number, as from transformers 5 on."""
    return "top_k_index" in inspect.signature(forward).parameters


def _weights_of_list(experts: Sequence[Expert]) -> Weights | None:
    import torch

    projections = []
    for expert in experts:
        layers = [getattr(expert, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
        linears = [linear for linear in layers if type(linear) is torch.nn.Linear and linear.bias is None]
        if len(linears) < len(layers):
            return None
        if any(_is_watched(module) for module in (expert, *linears)) or not is_silu(expert.act_fn):
            return None
        projections.append(tuple(linear.weight for linear in linears))
    if not projections or len(projections) > GROUPED_MATMUL_TENSORS:
        return None
    if not is_plain(*(weight for projection in projections for weight in projection)):
        return None
    gate, up, down = zip(*projections, strict=True)
    return Weights((gate, up), down, len(projections), transposed=True)


def _weights_of_tensors(experts: Experts, *, transposed: bool) -> Weights | None:
    up, down = experts.gate_up_proj, experts.down_proj
    if not is_plain(up, down) or not is_silu(experts.act_fn):
        return None
    return Weights(((up,),), (down,), up.shape[0], transposed)


def _is_watched(module: object) -> bool:
    # A module with hooks, or with a forward of its own, must be called.
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in hooks) or "forward" in vars(module)


_HOW = (
    "Tokens are permuted, multiplied in groups and unpermuted, and no weights are copied. Upstream's code still runs "
    "if experts are not plain layers."
)


NEXT_BLOCK = f"{modeling('qwen3_next')}:Qwen3NextSparseMoeBlock.forward"
QWEN3_MOE_BLOCK = f"{modeling('qwen3_moe')}:Qwen3MoeSparseMoeBlock.forward"
VISION_BLOCK = f"{modeling('qwen3_vl_moe')}:Qwen3VLMoeTextSparseMoeBlock"


def _declare(
    model: str, owner: str, implementation: Callable[..., object], *mentioned: str, retired_by: Probe
) -> None:
    target = f"{modeling(model)}:{owner}.forward"
    declare(
        f"fuse_experts_in_{model}_{owner}",
        target,
        implementation,
        why="The loop over the experts waits for the NPU in every round. Upstream's own fused block returns the wrong "
        "rank for a batch above one, and copies all weights of all experts three times in every forward.",
        how=_HOW,
        link="https://github.com/volcengine/verl/pull/5191",
        retired_by=retired_by,
        requires=AllOf(*(Mentions(target, name) for name in mentioned)),
    )


_declare(
    "qwen3_moe",
    "Qwen3MoeSparseMoeBlock",
    expert_block,
    "norm_topk_prob",
    "one_hot",
    retired_by=upstream_assigns(QWEN3_MOE_BLOCK),
)
_declare(
    "qwen3_moe",
    "Qwen3MoeExperts",
    fused_experts,
    "top_k_weights",
    "gate_up_proj",
    # Upstream's block reads the experts' weights and never calls the experts.
    retired_by=upstream_assigns(QWEN3_MOE_BLOCK),
)
_declare(
    "qwen3_vl_moe",
    "Qwen3VLMoeTextExperts",
    vision_experts,
    "gate_up_proj",
    "down_proj",
    "one_hot",
    # Upstream's block brings experts of its own, but only in the layout of transformers 4.
    retired_by=AllOf(
        upstream_assigns(VISION_BLOCK),
        Not(Mentions(f"{modeling('qwen3_vl_moe')}:Qwen3VLMoeTextExperts.forward", "top_k_weights")),
    ),
)

declare(
    "fuse_experts_in_verl_NPUQwen3VLMoeTextExperts",
    f"{NPU_PATCH}:NPUQwen3VLMoeTextExperts.forward",
    upstream_experts,
    why="Upstream's own class gets the probabilities of the chosen experts only, and looks them up by the numbers of "
    "all: they are wrong, or the index is out of range. In evaluation every expert computes every token.",
    how=_HOW,
    # Its class is mended at the same revision.
    retired_by=UPSTREAM_DOES_IT,
    requires=Defines(f"{NPU_PATCH}:NPUQwen3VLMoeTextExperts.forward"),
)
