"""The output layer of models that compute their log-probabilities by a fused kernel, under FSDP2."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...registry.source.probe import AllOf, Defines, Mentions
from .feature import declare

__all__ = ["gathered"]

_WRAPPED = Defines("verl.utils.fsdp_utils:_select_fsdp2_wrap_targets")
"""Since this function, the output layer is one of FSDP2's own units, and sharded whenever it is not called itself."""
_FORWARD = "verl.models.transformers.{}:forward_with_torch_backend"
_MODELS = ("dense_common", "glm4v", "qwen2_vl", "qwen3_vl", "qwen3_5")

Result = TypeVar("Result")


def gathered(original: Callable[..., Result], model: object, *args: object, **kwargs: object) -> Result:
    """Call upstream's forward pass while FSDP2 has the weights of the output layer gathered."""
    import torch
    from torch.distributed.fsdp import FSDPModule

    head = getattr(model, "lm_head", None)
    if not isinstance(head, FSDPModule):
        return original(model, *args, **kwargs)
    head.unshard()
    try:
        return original(model, *args, **kwargs)
    finally:
        # With gradients FSDP2 does it at the end of the backward pass, after it has summed them over the ranks.
        if not torch.is_grad_enabled():
            head.reshard()


for _model in _MODELS:
    _target = _FORWARD.format(_model)
    declare(
        f"gather_the_output_layer_of_{_model}",
        _target,
        gathered,
        why="With strategy=fsdp2 and use_fused_kernels=True the first log-probabilities end with RuntimeError: "
        "aten.mm.default got mixed torch.Tensor and DTensor, because the weights of the output layer are read without "
        "the layer being called. Where upstream gathers them by full_tensor() instead, each rank keeps a part of its "
        "own gradient: what the other ranks add to it is lost, without an error.",
        how="FSDP2 gathers the output layer before the forward pass, and sums its gradients as those of all others.",
        requires=AllOf(_WRAPPED, Defines(_target)),
        retired_by=Mentions(_target, "unshard"),
        link="https://github.com/verl-project/verl/pull/6659",
    )
