"""Fixes for FSDP2: for weights that a model reads without calling their layer, and for offloaded outputs that are
changed in place.

FSDP2 gathers a layer's weights only when the layer is called. At other times, a rank has only a shard of them, which
may be on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ...registry.source.probe import AllOf, AnyOf, Calls, Defines, Reads, Sets
from . import declare, fused_ops, modeling

if TYPE_CHECKING:
    import torch

_WRAPPED = Defines("verl.utils.fsdp_utils:_select_fsdp2_wrap_targets")
"""From the version with this function on, the output layer is a separate FSDP2 unit. It stays sharded until it is
called."""
_FORWARD = "verl.models.transformers.{}:forward_with_torch_backend"
_MODELS = {
    "dense_common": ("qwen2", "Qwen2ForCausalLM"),
    "glm4v": ("glm4v", "Glm4vForConditionalGeneration"),
    "qwen2_vl": ("qwen2_vl", "Qwen2VLForConditionalGeneration"),
    "qwen3_vl": ("qwen3_vl", "Qwen3VLForConditionalGeneration"),
    "qwen3_5": ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
}
"""For each of upstream's forward passes, a transformers model that uses it: the module and the class."""
_VISION = {"qwen3_vl": "Qwen3VLVisionModel", "qwen3_vl_moe": "Qwen3VLMoeVisionModel"}
_MONKEY_PATCH = "verl.models.transformers.monkey_patch"
Result = TypeVar("Result")


def with_output_layer(original: Callable[..., Result], model: object, *args: object, **kwargs: object) -> Result:
    """Call upstream's forward pass after gathering the weights of the output layer."""
    return _gathered("lm_head", original, model, *args, **kwargs)


def with_positions(original: Callable[..., Result], model: object, *args: object, **kwargs: object) -> Result:
    """Compute the position embeddings of images after gathering the embedding table, so that the whole table is on the
    NPU."""
    return _gathered("pos_embed", original, model, *args, **kwargs)


def _gathered(layer: str, original: Callable[..., Result], model: object, *args: object, **kwargs: object) -> Result:
    import torch
    from torch.distributed.fsdp import FSDPModule

    read = getattr(model, layer, None)
    if not isinstance(read, FSDPModule):
        return original(model, *args, **kwargs)
    read.unshard()
    try:
        return original(model, *args, **kwargs)
    finally:
        # With gradients, FSDP2 reshards at the end of the backward pass, after summing them over the ranks.
        if not torch.is_grad_enabled():
            read.reshard()


for _model, (_file, _class) in _MODELS.items():
    _target = _FORWARD.format(_model)
    declare(
        f"gather_the_output_layer_of_{_model}",
        _target,
        with_output_layer,
        may_use=(f"{modeling(_file)}:{_class}.lm_head",),
        why="With strategy=fsdp2 and use_fused_kernels=True, the first log-probabilities fail with `RuntimeError: "
        "aten.mm.default got mixed torch.Tensor and DTensor`, because upstream reads the weights of the output layer "
        "without calling the layer. For some models, upstream gathers the weights with full_tensor(). There, each "
        "rank keeps only part of its own gradient and loses the other ranks' contributions, without an error.",
        how="FSDP2 gathers the output layer before the forward pass, and sums its gradients as for other layers.",
        requires=AllOf(_WRAPPED, Defines(_target)),
        retired_by=Calls(_target, "unshard"),
        link="https://github.com/verl-project/verl/pull/6659",
    )
for _model, _class in _VISION.items():
    _owner = f"{modeling(_model)}:{_class}"
    _target = f"{_owner}.fast_pos_embed_interpolate"
    declare(
        f"gather_the_positions_of_{_model}",
        _target,
        with_positions,
        uses=(f"{_owner}.pos_embed",),
        why="With strategy=fsdp2 and an offloaded model, the first image fails with `RuntimeError: Expected all "
        "tensors to be on the same device`: the indices are made on the device of the table, which is the host.",
        how="FSDP2 gathers the table first, so the table is on the NPU.",
        requires=Defines(_target),
        retired_by=AnyOf(
            Sets(_MONKEY_PATCH, "fast_pos_embed_interpolate"),
            Calls(_target, "unshard"),
            # In that case the indices are made on the device of the images.
            Calls(f"{_owner}.forward", "pos_embed", directly=True),
        ),
        link="none: verl v0.8.0 replaces the function with its own, see monkey_patch.py",
    )


_HANDLER = "verl.utils.activation_offload:ActivationHandler"
_OUTPUTS = "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_outputs"
_WRAP_TARGETS = "verl.utils.fsdp_utils:_select_fsdp2_wrap_targets"


@fused_ops.wrap(
    f"{_HANDLER}.wrap_module_forward_method",
    why="With enable_activation_offload=True and strategy=fsdp2, a model whose output layer has its own weights fails "
    "with `RuntimeError: Output 0 of … is a view and is being modified inplace`. Offloading returns the logits as a "
    "view, and upstream divides them in place.",
    how="We copy the logits before the division. Later versions of upstream also divide into a copy.",
    link="https://github.com/verl-project/verl/pull/6935",
    retired_by=Calls(_OUTPUTS, "full_tensor"),
    requires=AllOf(Defines(f"{_HANDLER}.wrap_module_forward_method"), Reads(_WRAP_TARGETS, "lm_head")),
)
def let_logits_be_scaled_in_place(original: Callable[..., None], handler: object, module: torch.nn.Module) -> None:
    """Wrap a module so that its activations are offloaded. If the module is the output layer, make it return a copy of
    its output, so that callers can change the logits in place."""
    import torch

    original(handler, module)
    # Among the modules wrapped for offloading, only the output layer is a Linear.
    if isinstance(module, torch.nn.Linear):
        offloaded = module.forward
        module.forward = lambda *args, **kwargs: _copied(offloaded(*args, **kwargs))


def _copied(logits: torch.Tensor) -> torch.Tensor:
    return logits.clone() if logits.requires_grad else logits
