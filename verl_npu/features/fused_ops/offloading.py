"""Activations that upstream offloads to the host, and then changes in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...registry.source.probe import AllOf, Defines, Mentions
from .feature import fused_ops

if TYPE_CHECKING:
    import torch

__all__ = ["let_logits_be_scaled_in_place"]

_HANDLER = "verl.utils.activation_offload:ActivationHandler"
_OUTPUTS = "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_outputs"
_WRAPPED = "verl.utils.fsdp_utils:_select_fsdp2_wrap_targets"


@fused_ops.wrap(
    f"{_HANDLER}.wrap_module_forward_method",
    why="With enable_activation_offload=True and strategy=fsdp2 a model whose output layer has its own weights ends "
    "with RuntimeError: Output 0 of … is a view and is being modified inplace. Offloading returns the logits as they "
    "are, as a view, and upstream divides them in place.",
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


def _copied(logits: torch.Tensor) -> torch.Tensor:
    return logits.clone() if logits.requires_grad else logits
