"""The state of a model with MindSpeed's modules in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....registry.source.probe import Defines, Mentions
from ..feature import megatron

if TYPE_CHECKING:
    from torch import nn

__all__: list[str] = []

_STATE = (
    "mindspeed.te.pytorch.module.layernorm_column_parallel_linear:MindSpeedTELayerNormColumnParallelLinear.state_dict"
)


@megatron.wrap(
    _STATE,
    why="A hand-over of weights ends in mbridge's export_weights with KeyError: "
    "'decoder.layers.0.input_layernorm.weight', and a checkpoint lacks weights of norms without an error: MindSpeed's "
    "module removes every name with _layernorm or _linear from what was collected of the whole model so far.",
    how="The module removes such names among its own only.",
    link="none: see state_dict in MindSpeed's layernorm_column_parallel_linear.py",
    retired_by=Mentions(_STATE, "prefix"),
    requires=Defines(_STATE),
)
def collect_a_modules_own_state_only(
    original: Callable[..., dict[str, Any]],
    module: nn.Module,
    *args: object,
    destination: dict[str, Any] | None = None,
    prefix: str = "",
    keep_vars: bool = False,
) -> dict[str, Any]:
    """Return the state of a module, added to `destination` if there is one."""
    if args or destination is None:
        # torch collects a model by keywords. What is given by position is the user's.
        return original(module, *args, destination=destination, prefix=prefix, keep_vars=keep_vars)
    own = original(module, keep_vars=keep_vars)
    destination.update({prefix + name: value for name, value in own.items()})
    versions = getattr(destination, "_metadata", None)
    if versions is not None:
        versions.update({(prefix + name).rstrip("."): value for name, value in own._metadata.items()})  # type: ignore[attr-defined]  # torch's own attribute
    return destination
