"""The feature that the modules beside this one add their patches to, and what their patches have in common."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import cast

from ...registry.apply.code import clone
from ...registry.patch import Feature
from ...registry.source.probe import AllOf, Assigns, Defines, Probe
from .. import upstreams

__all__ = ["LINK", "NPU_PATCH", "UPSTREAM_DOES_IT", "declare", "fused_ops", "modeling", "upstream_assigns"]

NPU_PATCH = upstreams.NPU_PATCH.name
LINK = "https://github.com/volcengine/verl/pull/4436"
UPSTREAM_DOES_IT: Probe = Defines(f"{NPU_PATCH}:apply_npu_patches")
"""From this function on, upstream patches each model by itself, and no longer all of them or none."""

fused_ops = Feature(
    "fused_ops", "Qwen models use torch_npu's fused operators where upstream does not use them.", after=NPU_PATCH
)


def upstream_assigns(target: str) -> Probe:
    """Return the question whether upstream patches `target` by itself, each model apart from the others."""
    return AllOf(UPSTREAM_DOES_IT, Assigns(upstreams.NPU_PATCH, target))


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
    retired_by: Probe | None = None,
    link: str = LINK,
) -> None:
    """Declare that calls of `target` go to `implementation`, as the patch `name`.

    One implementation serves several targets, so each patch gets a copy of it with a name of its own. Unless something
    else is said, it is retired if upstream assigns the same target.
    """
    retired_by = upstream_assigns(target) if retired_by is None else retired_by
    wrap = fused_ops.wrap(target, why=why, how=how, link=link, retired_by=retired_by, requires=requires)
    wrap(clone(cast(FunctionType, implementation), name=name))
