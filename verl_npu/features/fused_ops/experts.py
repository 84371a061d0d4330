"""Mixtures of experts through torch_npu's permutation of tokens and grouped matrix product, which copies no weights.

Blocks of experts that upstream puts in, though this version of transformers has another layout, are kept out.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from ...registry.source.probe import AllOf, Defines, Imports, Never, Not, Probe, Reads, Sets, Takes
from ...reporting import report
from .feature import (
    LINK,
    NPU_PATCH,
    UPSTREAM_DOES_IT,
    declare,
    fused_ops,
    is_plain,
    modeling,
    operator,
    upstream_assigns,
)
from .layers import Activation, is_silu

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Context(Protocol):
    """The context of an autograd function."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    transposed: bool

    def save_for_backward(self, *tensors: Tensor) -> None: ...


def grouped_linear(x: Tensor, ends: Tensor, weights: Sequence[Tensor], *, transposed: bool) -> Tensor:
    """Multiply rows of x in groups, each group by its own matrix; differentiable in x and the weights.

    x [rows, inputs], ends int64 [groups] (where each group ends), weights: one [groups, inputs, outputs], or `groups`
    of [inputs, outputs]; `transposed` if they are [.., outputs, inputs], as those of a Linear -> [rows, outputs]. A
    group may be empty; the gradient of its weight is zero then.
    """
    return _product()(x, ends, transposed, *weights)


def _products_of_columns(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """Multiply columns of `left` [m, rows] and rows of `right` [rows, n] in groups -> [groups, m, n]."""
    import torch

    if _operator_groups_columns(left.dtype, left.device):
        return _grouped_columns(left, right, ends)
    bounds = pairwise([0, *ends.tolist()])
    return torch.stack([left[:, start:end] @ right[start:end] for start, end in bounds])


def _grouped_columns(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    import torch_npu

    made: Tensor = torch_npu.npu_grouped_matmul([left], [right], group_list=ends, split_item=3, group_type=2)[0]
    return made


@lru_cache(maxsize=16)
def _operator_groups_columns(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the installed torch_npu takes group_type=2: some versions refuse it, or give a sum over the groups.

    Tried once, because the schema of the operator is the same in all of them.
    """
    import torch

    ones = torch.ones(16, 16, dtype=dtype, device=device)
    ends = torch.tensor([6, 16], dtype=torch.int64, device=device)
    try:
        made = _grouped_columns(ones.transpose(0, 1), ones, ends)
        found = f"gives a result of the shape {tuple(made.shape)}"
        if made.shape == (2, 16, 16) and made[:, 0, 0].tolist() == [6, 10]:
            return True
    except RuntimeError as error:
        found = f"refuses it: {str(error).splitlines()[0]}" if str(error) else "refuses it"
    import torch_npu

    report(
        f"torch_npu {torch_npu.__version__} {found} (npu_grouped_matmul with group_type=2): the gradients of experts "
        "are computed one by one, which is slower"
    )
    return False


@lru_cache(maxsize=1)
def _product() -> Forward:
    """The autograd function of this module: x, ends, transposed, *weights."""
    import torch
    import torch_npu

    def product(x: Tensor, weights: Sequence[Tensor], ends: Tensor) -> Tensor:
        # group_list_type and newer keywords are left out: the oldest torch_npu takes the ends of the groups only.
        made: Tensor = torch_npu.npu_grouped_matmul([x], list(weights), group_list=ends, split_item=2, group_type=0)[0]
        return made

    class GroupedLinear(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Context, x: Tensor, ends: Tensor, transposed: bool, *weights: Tensor) -> Tensor:
            ctx.save_for_backward(x, ends, *weights)
            ctx.transposed = transposed
            return product(x, [w.transpose(-1, -2) for w in weights] if transposed else weights, ends)

        @staticmethod
        def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
            x, ends, *weights = ctx.saved_tensors
            gradient = gradient.contiguous()
            for_x, for_weights = None, [None] * len(weights)
            if ctx.needs_input_grad[0]:
                for_x = product(gradient, weights if ctx.transposed else [w.transpose(-1, -2) for w in weights], ends)
            if any(ctx.needs_input_grad[3:]):
                left, right = (gradient, x) if ctx.transposed else (x, gradient)
                stacked = _products_of_columns(left.transpose(0, 1), right, ends)
                for_weights = [stacked] if len(weights) == 1 and weights[0].dim() == 3 else list(stacked.unbind(0))
            return for_x, None, None, *for_weights

    made: Forward = GroupedLinear.apply
    return made


_OPERATORS = ("npu_grouped_matmul", "npu_swiglu")
_OTHERWISE = "plain torch sorts the tokens instead"


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of all experts, as they are in memory."""

    up: tuple[Sequence[Tensor], ...]
    """Gate and up: two sequences if they are separate, one if each weight holds both."""
    down: Sequence[Tensor]
    experts: int
    transposed: bool
    """Whether a matrix is [outputs, inputs], as that of a Linear."""

    def go_with(self, tokens: Tensor) -> bool:
        """Return whether the grouped product can multiply `tokens` by these weights.

        It needs one dtype. Autocast casts both; that copies the weights, but the loop over experts does so as well.
        """
        import torch

        if torch.is_autocast_enabled(tokens.device.type):
            return True
        return all(weight.dtype == tokens.dtype for part in (*self.up, self.down) for weight in part)


def has_operators(tokens: Tensor) -> bool:
    """Return whether `tokens` are on an NPU and this torch_npu has the operators that are needed."""
    # All are looked up, so that the user is told of each one that is missing.
    return None not in [operator(name, tokens) for name in _OPERATORS]


def routed(tokens: Tensor, selected: Tensor, routing: Tensor, weights: Weights) -> Tensor:
    """tokens [tokens, width], selected and routing [tokens, chosen] -> [tokens, width] in the dtype of `tokens`."""
    import torch
    import torch_npu

    device = tokens.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tokens.dtype
    # Counted by adding: for bincount and one_hot the host would wait until the device has computed the largest index.
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

    # From torch_npu 2.7.1 on it has a gradient.
    if operator("npu_moe_token_permute", tokens, _OTHERWISE) is not None:
        made: tuple[Tensor, Tensor] = torch_npu.npu_moe_token_permute(tokens, selected.to(torch.int32))
        return made
    # NPUs sort floats much faster than integers, and the numbers of experts are exact in them.
    order = torch.argsort(selected.reshape(-1).float(), stable=True)
    rows = torch.arange(order.numel(), device=order.device)
    return tokens.index_select(0, order // selected.shape[1]), torch.empty_like(order).scatter_(0, order, rows)


def _mixed(rows: Tensor, places: Tensor, routing: Tensor) -> Tensor:
    """rows [tokens * chosen, width] back in place, weighted by routing [tokens, chosen] and added: [tokens, width]."""
    import torch_npu

    if operator("npu_moe_token_unpermute", rows, _OTHERWISE) is not None:
        made: Tensor = torch_npu.npu_moe_token_unpermute(rows, places, probs=routing)
        return made
    copies = rows.index_select(0, places.long()).unflatten(0, tuple(routing.shape))
    return (copies * routing.unsqueeze(-1)).sum(dim=1)


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


GROUPED_MATMUL_TENSORS = 128
"""The most tensors that `npu_grouped_matmul` takes in one list (torch_npu-npu_grouped_matmul.md)."""

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
        why="The loop over the experts waits for the NPU in every round. Upstream's own fused block returns the wrong "
        "rank for a batch above one, and copies all weights of all experts three times in every forward.",
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
    uses=["Qwen3VLMoeTextExperts.act_fn"],
    # Upstream's block brings experts of its own, but only in the layout of transformers 4.
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
    why="Upstream's own class gets the probabilities of the chosen experts only, and looks them up by the numbers of "
    "all: they are wrong, or the index is out of range. In evaluation every expert computes every token.",
    how=_HOW,
    # Its class is mended at the same revision.
    retired_by=UPSTREAM_DOES_IT,
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
    why="Upstream puts in a block whose expert weights are [experts, width, inner], as in transformers 4. In "
    "transformers 5 they are transposed, so a checkpoint does not fit.",
    how="With transformers 5 its own block stays, and the fused experts of this feature run in it.",
    link=LINK,
    retired_by=Never("no release of upstream does it"),
    requires=Sets(f"{NPU_PATCH}:_patch_qwen3_vl_moe", "Qwen3VLMoeTextSparseMoeBlock"),
    undoes=[VISION_BLOCK],
)
def keep_transformers_expert_block_in_qwen3_vl_moe(original: Callable[[], None]) -> None:
    """Run upstream's patches of the models, but keep a block of transformers that has another layout."""
    module = importlib.import_module(modeling("qwen3_vl_moe"))
    own = module.Qwen3VLMoeTextSparseMoeBlock
    original()
    if takes_indices(module.Qwen3VLMoeTextExperts.forward):
        vars(module)["Qwen3VLMoeTextSparseMoeBlock"] = own


@fused_ops.wrap(
    _APPLY,
    uses=(VISION_BLOCK, f"{_VISION_EXPERTS}.forward"),
    may_use=_BLOCKS,
    why="v0.8.0 puts in blocks that are written for the experts of transformers 4, and its guide for Ascend names "
    "transformers 5.3. Qwen3-MoE and Qwen3-Next end with `AttributeError: 'tuple' object has no attribute 'softmax'`, "
    "and a checkpoint of Qwen3-VL-MoE does not fit.",
    how="With transformers 5 its own blocks stay, and the fused experts of this feature run in them.",
    link="https://github.com/volcengine/verl/pull/6708",
    retired_by=UPSTREAM_DOES_IT,
    # The module cannot be imported without a model that came with transformers 5.
    requires=AllOf(Imports(_APPLY, NPU_PATCH), Imports(NPU_PATCH, modeling("qwen3_5"))),
    undoes=[QWEN3_MOE_BLOCK, NEXT_BLOCK, VISION_BLOCK],
)
def keep_transformers_expert_blocks(original: Callable[..., Result], *args: object, **kwargs: object) -> Result:
    """Run upstream's patches of the models, but keep blocks of transformers that have another layout."""
    if importlib.util.find_spec("transformers.models.qwen3_5") is None:
        # Upstream's patches cannot be imported, which it logs, and goes on.
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
    """Return the block of a model, if its experts are one module as in transformers 5 and no list of modules."""
    module = importlib.import_module(modeling(model))
    return [getattr(module, f"{prefix}SparseMoeBlock")] if hasattr(module, f"{prefix}Experts") else []
