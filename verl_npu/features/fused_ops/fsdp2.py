"""Weights that a model reads without calling the layer that they belong to, and offloaded outputs changed in place.

FSDP2 gathers the weights of a layer when the layer is called, and has a shard of them, perhaps on the host, otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ...registry.source.probe import AllOf, AnyOf, Calls, Defines, Reads, Sets
from . import declare, fused_ops, modeling

if TYPE_CHECKING:
    import torch

_WRAPPED = Defines("verl.utils.fsdp_utils:_select_fsdp2_wrap_targets")
"""Since this function, the output layer is one of FSDP2's own units, and sharded whenever it is not called itself."""
_FORWARD = "verl.models.transformers.{}:forward_with_torch_backend"
_MODELS = {
    "dense_common": ("qwen2", "Qwen2ForCausalLM"),
    "glm4v": ("glm4v", "Glm4vForConditionalGeneration"),
    "qwen2_vl": ("qwen2_vl", "Qwen2VLForConditionalGeneration"),
    "qwen3_vl": ("qwen3_vl", "Qwen3VLForConditionalGeneration"),
    "qwen3_5": ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
}
"""A model of transformers that each of upstream's forward passes is for."""
_VISION = {"qwen3_vl": "Qwen3VLVisionModel", "qwen3_vl_moe": "Qwen3VLMoeVisionModel"}
_MONKEY_PATCH = "verl.models.transformers.monkey_patch"
Result = TypeVar("Result")


def with_output_layer(original: Callable[..., Result], model: object, *args: object, **kwargs: object) -> Result:
    """Call upstream's forward pass while FSDP2 has the weights of the output layer gathered."""
    return _gathered("lm_head", original, model, *args, **kwargs)


def with_positions(original: Callable[..., Result], model: object, *args: object, **kwargs: object) -> Result:
    """Compute position embeddings of images while FSDP2 has their table gathered: indices are made on its device."""
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
        # With gradients FSDP2 does it at the end of the backward pass, after it has summed them over the ranks.
        if not torch.is_grad_enabled():
            read.reshard()


for _model, (_file, _class) in _MODELS.items():
    _target = _FORWARD.format(_model)
    declare(
        f"gather_the_output_layer_of_{_model}",
        _target,
        with_output_layer,
        may_use=(f"{modeling(_file)}:{_class}.lm_head",),
        why="With strategy=fsdp2 and use_fused_kernels=True the first log-probabilities end with RuntimeError: "
        "aten.mm.default got mixed torch.Tensor and DTensor, because the weights of the output layer are read without "
        "the layer being called. In models for which upstream gathers them by full_tensor(), each rank keeps part of "
        "its own gradient: what the other ranks add to it is lost, without an error.",
        how="FSDP2 gathers the output layer before the forward pass, and sums its gradients as those of all others.",
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
        why="With strategy=fsdp2 and a model that is offloaded, the first image ends with RuntimeError: Expected all "
        "tensors to be on the same device: the indices are made on the device of the table, which is the host.",
        how="FSDP2 gathers the table first, so that it is on the NPU.",
        requires=Defines(_target),
        retired_by=AnyOf(
            Sets(_MONKEY_PATCH, "fast_pos_embed_interpolate"),
            Calls(_target, "unshard"),
            # The indices are made on the device of the images then.
            Calls(f"{_owner}.forward", "pos_embed", directly=True),
        ),
        link="none: verl v0.8.0 has a function of its own in its place, see monkey_patch.py",
    )


_HANDLER = "verl.utils.activation_offload:ActivationHandler"
_OUTPUTS = "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_outputs"
_WRAP_TARGETS = "verl.utils.fsdp_utils:_select_fsdp2_wrap_targets"


@fused_ops.wrap(
    f"{_HANDLER}.wrap_module_forward_method",
    why="With enable_activation_offload=True and strategy=fsdp2 a model whose output layer has its own weights ends "
    "with RuntimeError: Output 0 of … is a view and is being modified inplace. Offloading returns the logits as they "
    "are, as a view, and upstream divides them in place.",
    how="The logits are a copy of their own. Upstream's later division makes one as well.",
    link="https://github.com/verl-project/verl/pull/6935",
    retired_by=Calls(_OUTPUTS, "full_tensor"),
    requires=AllOf(Defines(f"{_HANDLER}.wrap_module_forward_method"), Reads(_WRAP_TARGETS, "lm_head")),
)
def let_logits_be_scaled_in_place(original: Callable[..., None], handler: object, module: torch.nn.Module) -> None:
    """Offload the activations of a module; those of an output layer are copied afterwards."""
    import torch

    original(handler, module)
    # Of what is wrapped for offloading, only the output layer is a linear one.
    if isinstance(module, torch.nn.Linear):
        offloaded = module.forward
        module.forward = lambda *args, **kwargs: _copied(offloaded(*args, **kwargs))


def _copied(logits: torch.Tensor) -> torch.Tensor:
    return logits.clone() if logits.requires_grad else logits
