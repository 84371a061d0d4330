"""The feature that the modules beside this one add their patches to, and what their patches have in common."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import cast

from ...registry.apply.code import clone
from ...registry.patch import Feature
from ...registry.source.probe import Defines, Probe

__all__ = ["LINK", "NPU_PATCH", "UPSTREAM_DOES_IT", "declare", "fused_ops", "modeling"]

NPU_PATCH = "verl.models.transformers.npu_patch"
LINK = "https://github.com/volcengine/verl/pull/4436"
UPSTREAM_DOES_IT: Probe = Defines(f"{NPU_PATCH}:apply_npu_patches")
"""From this function on, upstream patches each model by itself, and no longer all of them or none."""

fused_ops = Feature(
    "fused_ops", "Qwen models use torch_npu's fused operators where upstream does not use them.", after=NPU_PATCH
)


def modeling(model: str) -> str:
    """Return the name of a model's module in transformers."""
    return f"transformers.models.{model}.modeling_{model}"


def declare(
    name: str,
    target: str,
    implementation: Callable[..., object],
    *,
    why: str,
    how: str,
    requires: Probe,
    retired_by: Probe = UPSTREAM_DOES_IT,
    link: str = LINK,
) -> None:
    """Declare that calls of `target` go to `implementation`, as the patch `name`.

    One implementation serves several targets, so each patch gets a copy of it with a name of its own.
    """
    wrap = fused_ops.wrap(target, why=why, how=how, link=link, retired_by=retired_by, requires=requires)
    wrap(clone(cast(FunctionType, implementation), name=name))
