"""Activations that are offloaded to the host, in models that change them in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ...registry.source.probe import AllOf, Defines, Mentions
from .feature import fused_ops

if TYPE_CHECKING:
    import torch

__all__ = ["let_deepstack_change_offloaded_activations", "let_logits_be_scaled_in_place"]

_HANDLER = "verl.utils.activation_offload:ActivationHandler"
_OUTPUTS = "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_outputs"
_WRAPPED = "verl.utils.fsdp_utils:_select_fsdp2_wrap_targets"
_ERROR = "RuntimeError: Output 0 of … is a view and is being modified inplace"
_DEEPSTACK = ("Qwen3VLTextDecoderLayer", "Qwen3VLMoeTextDecoderLayer")
"""Layers to whose results transformers adds those of the images, in place."""

Result = TypeVar("Result")


@fused_ops.wrap(
    f"{_HANDLER}.wrap_module_forward_method",
    why=f"With enable_activation_offload=True and strategy=fsdp2 a model whose output layer has weights of its own "
    f"ends with {_ERROR}: offloading returns the logits as they are, as a view, and upstream divides them in place.",
    how="The logits are a copy of their own. Upstream's later division makes one as well.",
    link="https://github.com/verl-project/verl/pull/6935",
    retired_by=Mentions(_OUTPUTS, "full_tensor"),
    requires=AllOf(Defines(f"{_HANDLER}.wrap_module_forward_method"), Mentions(_WRAPPED, "lm_head")),
)
def let_logits_be_scaled_in_place(original: Callable[..., None], handler: object, module: torch.nn.Module) -> None:
    """Offload the activations of a module; those of an output layer are copied afterwards."""
    import torch

    original(handler, module)
    # Of what is wrapped for offloading, only the output layer is a linear one.
    if isinstance(module, torch.nn.Linear):
        offloaded = module.forward
        module.forward = lambda *args, **kwargs: _copied(offloaded(*args, **kwargs))


@fused_ops.wrap(
    f"{_HANDLER}.forward",
    why=f"With enable_activation_offload=True Qwen3-VL ends with {_ERROR}: offloading returns a layer's result as it "
    "is, as a view, and transformers adds the images' to it in place.",
    how="The result of such a layer is a copy of its own.",
    link="none: compare _deepstack_process in transformers' modeling_qwen3_vl.py",
    retired_by=Mentions(f"{_HANDLER}.forward", "clone"),
    requires=Defines(f"{_HANDLER}.forward"),
)
def let_deepstack_change_offloaded_activations(
    original: Callable[..., Result], handler: object, module: torch.nn.Module, *args: object, **kwargs: object
) -> Result:
    """Return the result of a layer whose activations are offloaded."""
    result = original(handler, module, *args, **kwargs)
    return _copied(result) if module.training and type(module).__name__.endswith(_DEEPSTACK) else result


def _copied(result: Result) -> Result:
    """The same tensor, or tuple whose first member is one, with storage of its own for what needs gradients."""
    if isinstance(result, tuple):
        return (_copied(result[0]), *result[1:])  # type: ignore[return-value]
    return result.clone() if getattr(result, "requires_grad", False) else result  # type: ignore[attr-defined]
