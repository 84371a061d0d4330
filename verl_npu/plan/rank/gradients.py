"""The gradients that a module holds while it waits for more of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["gradients"]


def gradients(module: nn.Module) -> Iterator[Tensor]:
    """Yield what is summed up over micro batches: parameters' gradients, and those that FSDP has not reduced yet.

    verl from v0.9.0 on has them reduced with the last micro batch alone. Until then FSDP1 keeps them whole as the
    gradients of its flat parameters, and FSDP2 beside its parameters. Source: torch/distributed/fsdp/_fully_shard,
    `FSDPParam.to_accumulated_grad_if_needed`.
    """
    for weight in module.parameters():
        # Megatron keeps gradients in buffers of its own.
        yield from _given(weight, "grad", "main_grad")
    for part in module.modules():
        for sharded in _sharded_parameters(part):
            # In the type that they are reduced in, if they were computed in another one.
            yield from _given(sharded, "unsharded_accumulated_grad")
            yield from _given(getattr(sharded, "_unsharded_param", None), "grad")


def _given(holder: object, *names: str) -> Iterator[Tensor]:
    for name in names:
        gradient = getattr(holder, name, None)
        if gradient is not None:
            yield gradient


def _sharded_parameters(part: nn.Module) -> Iterator[Any]:
    """FSDP2's own parameters of a module that was given to `fully_shard`."""
    state_of = getattr(part, "_get_fsdp_state", None)
    if state_of is None:
        return
    state = state_of()
    # One group or none, and in torch 2.13 any number of them.
    several = getattr(state, "_fsdp_param_groups", None)
    for group in [state._fsdp_param_group] if several is None else several:
        if group is not None:
            yield from group.fsdp_params
