"""The feature that the modules beside this one declare their patches on, and what their patches have in common."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from ...registry.patch import Feature
from ...registry.source.probe import Defines, Probe

__all__ = ["LINK", "NPU_PATCH", "UPSTREAM_DOES_IT", "fused_ops", "modeling", "named"]

NPU_PATCH = "verl.models.transformers.npu_patch"
LINK = "https://github.com/volcengine/verl/pull/4436"
UPSTREAM_DOES_IT: Probe = Defines(f"{NPU_PATCH}:apply_npu_patches")
"""Upstream patches model by model from here on, and no longer all or nothing."""

fused_ops = Feature(
    "fused_ops", "torch_npu's fused operators in the Qwen models, where upstream has none", after=NPU_PATCH
)


def modeling(model: str) -> str:
    """The module of a model in transformers."""
    return f"transformers.models.{model}.modeling_{model}"


def named(name: str, implementation: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of `implementation` called `name`: one implementation serves several targets, each as its own patch."""
    if not isinstance(implementation, types.FunctionType):
        raise TypeError(f"expected a function, found {implementation!r}")
    copy = types.FunctionType(
        implementation.__code__,
        implementation.__globals__,
        name,
        implementation.__defaults__,
        implementation.__closure__,
    )
    copy.__kwdefaults__ = implementation.__kwdefaults__
    copy.__doc__ = implementation.__doc__
    return copy
