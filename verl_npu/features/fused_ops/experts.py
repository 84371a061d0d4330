"""Mixtures of experts with torch_npu's fused operators.

Upstream replaces some of transformers' expert blocks with blocks for another memory layout. Some patches prevent that
and keep transformers' blocks.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from ...registry.source.probe import AllOf, Defines, Imports, Never, Not, Probe, Reads, Sets, Takes
from . import LINK, NPU_PATCH, UPSTREAM_PATCHES_EACH_MODEL, declare, fused_ops, modeling, upstream_assigns

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .grouped import Expert, Experts


Result = TypeVar("Result")


class Block(Protocol):
    """A block that has a list of experts."""

    experts: Sequence[Expert]
    gate: Callable[[Tensor], Tensor]
    top_k: int
    norm_topk_prob: bool


Forward: TypeAlias = "Callable[..., Tensor]"


def expert_block(
    original: Callable[[Block, Tensor], Result], block: Block, hidden_states: Tensor
) -> Result | tuple[Tensor, Tensor]:
    """Run a mixture-of-experts block that stores its experts in a list.

    hidden_states [batch, seqlen, width] -> (the same shape, router logits [tokens, experts]). If the experts have
    adapters, hooks, wrappers, or weights in another dtype, upstream's loop over the experts runs instead.
    """
    import torch

    from .grouped import has_operators, routed, weights_of_list

    weights = weights_of_list(block.experts) if has_operators(hidden_states) else None
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
    if weights is None or not weights.fit(tokens):
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
    """Run experts whose weights are stacked in two tensors, as in transformers 5.

    hidden_states [tokens, width], top_k_index and top_k_weights [tokens, chosen] -> [tokens, width].
    """
    from .grouped import has_operators, routed, weights_of_tensors

    weights = weights_of_tensors(experts, transposed=True) if has_operators(hidden_states) else None
    if weights is None or not weights.fit(hidden_states):
        return original(experts, hidden_states, top_k_index, top_k_weights)
    return routed(hidden_states, top_k_index, top_k_weights.to(hidden_states.dtype), weights)


def dense_experts(
    original: Forward, experts: Experts, hidden_states: Tensor, routing_weights: Tensor, router_indices: Tensor
) -> Tensor:
    """Run experts whose weights are stacked in two tensors, as in Qwen3-VL-MoE in transformers 4.57.

    hidden_states [batch, seqlen, width], routing_weights [tokens, experts], router_indices [tokens, chosen] ->
    [batch, seqlen, width].
    """
    from .grouped import has_operators, routed, weights_of_tensors

    weights = weights_of_tensors(experts, transposed=False) if has_operators(hidden_states) else None
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
    if weights is None or not weights.fit(tokens):
        return original(experts, hidden_states, routing_weights, router_indices)
    chosen = routing_weights.gather(1, router_indices)
    return routed(tokens, router_indices, chosen.to(tokens.dtype), weights).view(hidden_states.shape)


def upstream_experts(
    original: Forward, experts: Experts, hidden_states: Tensor, routing_weights: Tensor, router_indices: Tensor
) -> Tensor:
    """Run the experts of upstream's own class in the same way as `dense_experts`.

    Upstream may pass only the routing weights of the chosen experts. hidden_states [batch, seqlen, width],
    routing_weights [tokens, chosen or experts], router_indices [tokens, chosen] -> [batch, seqlen, width].
    """
    import torch

    if routing_weights.shape[1] != experts.num_experts:
        wide = routing_weights.new_zeros(routing_weights.shape[0], experts.num_experts)
        routing_weights = torch.scatter(wide, 1, router_indices, routing_weights)
    return dense_experts(original, experts, hidden_states, routing_weights, router_indices)


def vision_experts(original: Forward, experts: Experts, *args: Tensor, **kwargs: Tensor) -> Tensor:
    """Run the experts of Qwen3-VL-MoE with the arguments that the installed version of transformers passes."""
    return (fused_experts if takes_indices(original) else dense_experts)(original, experts, *args, **kwargs)


@lru_cache(maxsize=16)
def takes_indices(forward: Callable[..., object]) -> bool:
    """Return whether the experts receive only the index and the weight of each chosen expert, as in transformers 5 and
    later."""
    return "top_k_index" in inspect.signature(forward).parameters


_HOW = (
    "torch_npu's operators permute the tokens, multiply them in groups, and unpermute them, without copying weights. "
    "Upstream's code still runs if experts are not plain layers."
)
NEXT_BLOCK = f"{modeling('qwen3_next')}:Qwen3NextSparseMoeBlock.forward"
QWEN3_MOE_BLOCK = f"{modeling('qwen3_moe')}:Qwen3MoeSparseMoeBlock.forward"
VISION_BLOCK = f"{modeling('qwen3_vl_moe')}:Qwen3VLMoeTextSparseMoeBlock"


def _declare(
    model: str,
    owner: str,
    implementation: Callable[..., object],
    *read: str,
    retired_by: Probe,
    uses: Sequence[str] = (),
    may_use: Sequence[str] = (),
) -> None:
    target = f"{modeling(model)}:{owner}.forward"
    declare(
        f"fuse_experts_in_{model}_{owner}",
        target,
        implementation,
        uses=[f"{modeling(model)}:{name}" for name in uses],
        may_use=[f"{modeling(model)}:{name}" for name in may_use],
        why="The loop over the experts waits for the NPU in every iteration. Upstream's own fused block returns a "
        "tensor of the wrong rank for a batch above one, and copies the weights of all experts three times in every "
        "forward pass.",
        how=_HOW,
        link="https://github.com/volcengine/verl/pull/5191",
        retired_by=retired_by,
        requires=AllOf(*(Reads(target, name) for name in read)),
    )


_declare(
    "qwen3_moe",
    "Qwen3MoeSparseMoeBlock",
    expert_block,
    "norm_topk_prob",
    "one_hot",
    uses=[f"Qwen3MoeSparseMoeBlock.{name}" for name in ("experts", "gate", "top_k")] + ["Qwen3MoeMLP.act_fn"],
    may_use=[f"Qwen3MoeMLP.{name}" for name in ("gate_proj", "up_proj", "down_proj")],
    retired_by=upstream_assigns(QWEN3_MOE_BLOCK),
)
_declare(
    "qwen3_moe",
    "Qwen3MoeExperts",
    fused_experts,
    "top_k_weights",
    "gate_up_proj",
    uses=[f"Qwen3MoeExperts.{name}" for name in ("gate_up_proj", "down_proj", "act_fn")],
    # Upstream's block reads the experts' weights but never calls the experts.
    retired_by=upstream_assigns(QWEN3_MOE_BLOCK),
)
_declare(
    "qwen3_vl_moe",
    "Qwen3VLMoeTextExperts",
    vision_experts,
    "gate_up_proj",
    "down_proj",
    "one_hot",
    uses=["Qwen3VLMoeTextExperts.act_fn"],
    # Upstream's block has its own experts, but only in the layout of transformers 4.
    retired_by=AllOf(
        upstream_assigns(VISION_BLOCK),
        Not(Takes(f"{modeling('qwen3_vl_moe')}:Qwen3VLMoeTextExperts.forward", "top_k_weights")),
    ),
)
declare(
    "fuse_experts_in_verl_NPUQwen3VLMoeTextExperts",
    f"{NPU_PATCH}:NPUQwen3VLMoeTextExperts.forward",
    upstream_experts,
    uses=[
        f"{NPU_PATCH}:NPUQwen3VLMoeTextExperts.{name}"
        for name in ("gate_up_proj", "down_proj", "act_fn", "num_experts")
    ],
    why="Upstream's own class gets the probabilities of only the chosen experts, but looks them up by the index among "
    "all experts: they are wrong, or the index is out of range. In evaluation every expert computes every token.",
    how=_HOW,
    # Upstream fixed its class at the same revision.
    retired_by=UPSTREAM_PATCHES_EACH_MODEL,
    requires=Defines(f"{NPU_PATCH}:NPUQwen3VLMoeTextExperts.forward"),
)


_VISION_EXPERTS = f"{modeling('qwen3_vl_moe')}:Qwen3VLMoeTextExperts"
_BLOCKS = tuple(
    f"{modeling(model)}:{prefix}{name}"
    for model, prefix in (("qwen3_moe", "Qwen3Moe"), ("qwen3_next", "Qwen3Next"))
    for name in ("SparseMoeBlock.forward", "Experts")
)
_APPLY = "verl.workers.engine.fsdp.utils:apply_npu_fsdp_patches"


@fused_ops.wrap(
    f"{NPU_PATCH}:apply_npu_patches",
    uses=(VISION_BLOCK, f"{_VISION_EXPERTS}.forward"),
    why="Upstream replaces the block with its own, whose expert weights are [experts, width, inner], as in "
    "transformers 4. In transformers 5 they are transposed, so a checkpoint does not fit.",
    how="With transformers 5, transformers' own block stays, and the fused experts of this feature run in it.",
    link=LINK,
    retired_by=Never("no release of upstream keeps transformers' block"),
    requires=Sets(f"{NPU_PATCH}:_patch_qwen3_vl_moe", "Qwen3VLMoeTextSparseMoeBlock"),
    undoes=[VISION_BLOCK],
)
def keep_transformers_expert_block_in_qwen3_vl_moe(original: Callable[[], None]) -> None:
    """Apply upstream's model patches. If transformers' expert block has a different layout from upstream's, keep
    transformers' expert block."""
    module = importlib.import_module(modeling("qwen3_vl_moe"))
    own = module.Qwen3VLMoeTextSparseMoeBlock
    original()
    if takes_indices(module.Qwen3VLMoeTextExperts.forward):
        vars(module)["Qwen3VLMoeTextSparseMoeBlock"] = own


@fused_ops.wrap(
    _APPLY,
    uses=(VISION_BLOCK, f"{_VISION_EXPERTS}.forward"),
    may_use=_BLOCKS,
    why="v0.8.0 replaces blocks with its own, which are written for the experts of transformers 4. But its guide for "
    "Ascend names transformers 5.3. Qwen3-MoE and Qwen3-Next fail with `AttributeError: 'tuple' object has no "
    "attribute 'softmax'`, and a checkpoint of Qwen3-VL-MoE does not fit.",
    how="With transformers 5, transformers' own blocks stay, and the fused experts of this feature run in them.",
    link="https://github.com/volcengine/verl/pull/6708",
    retired_by=UPSTREAM_PATCHES_EACH_MODEL,
    # Upstream's module cannot be imported without a model that came with transformers 5.
    requires=AllOf(Imports(_APPLY, NPU_PATCH), Imports(NPU_PATCH, modeling("qwen3_5"))),
    undoes=[QWEN3_MOE_BLOCK, NEXT_BLOCK, VISION_BLOCK],
)
def keep_transformers_expert_blocks(original: Callable[..., Result], *args: object, **kwargs: object) -> Result:
    """Apply upstream's model patches, but keep transformers' own expert blocks where their layout differs from
    upstream's."""
    if importlib.util.find_spec("transformers.models.qwen3_5") is None:
        # Upstream's patches cannot be imported. Upstream logs that and goes on.
        return original(*args, **kwargs)
    vision = importlib.import_module(modeling("qwen3_vl_moe"))
    blocks = [*_blocks("qwen3_moe", "Qwen3Moe"), *_blocks("qwen3_next", "Qwen3Next")]
    forwards = [block.forward for block in blocks]
    own = vision.Qwen3VLMoeTextSparseMoeBlock
    result = original(*args, **kwargs)
    for block, forward in zip(blocks, forwards, strict=True):
        block.forward = forward
    if takes_indices(vision.Qwen3VLMoeTextExperts.forward):
        vars(vision)["Qwen3VLMoeTextSparseMoeBlock"] = own
    return result


def _blocks(model: str, prefix: str) -> list[type[torch.nn.Module]]:
    """Return the expert block of a model if its experts are one module, as in transformers 5. A list of modules does
    not count."""
    module = importlib.import_module(modeling(model))
    return [getattr(module, f"{prefix}SparseMoeBlock")] if hasattr(module, f"{prefix}Experts") else []
