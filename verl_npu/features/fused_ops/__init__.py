"""torch_npu's fused operators in the Qwen models: norms, gated layers, rotary embeddings, mixtures of experts.

Upstream at its oldest pin has almost none of them. Later some are wrong, and if one model's file is missing, none is
used. Here each patch stands by itself, and upstream's code runs for whatever an operator cannot do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from packaging.version import InvalidVersion, Version

from ... import reporting
from ...registry.patch import Feature
from ...registry.source.probe import AllOf, Assigns, Defines, Probe
from .. import upstreams

if TYPE_CHECKING:
    from torch import Tensor

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
    uses: Sequence[str] = (),
    may_use: Sequence[str] = (),
) -> None:
    """Declare that calls of `target` go to `implementation`, as the patch `name`.

    Unless something else is said, it is retired if upstream assigns the same target.
    """
    retired_by = upstream_assigns(target) if retired_by is None else retired_by
    fused_ops.wrap(
        target,
        uses=uses,
        may_use=may_use,
        why=why,
        how=how,
        link=link,
        retired_by=retired_by,
        requires=requires,
        may_skip=True,
        name=name,
    )(implementation)


_DIFFERENTIABLE_FROM = {"npu_moe_token_permute": "2.7.1", "npu_moe_token_unpermute": "2.7.1"}
"""The first torch_npu that computes an operator's gradient. 2.5.1 has these two, and leaves their gradients None."""
Operator: TypeAlias = Callable[..., Any]
"""A function of torch_npu, which has no types: it returns a tensor or several."""


def operator(name: str, tensor: Tensor, otherwise: str = "upstream's own code runs instead") -> Operator | None:
    """Return torch_npu's operator `name` for a tensor on an NPU.

    Returns None for a tensor on another device, and if this build of torch_npu lacks the operator; the user is told
    that once, and what happens `otherwise`.
    """
    if tensor.device.type != "npu" or tensor.numel() == 0:
        return None
    import torch_npu

    version = getattr(torch_npu, "__version__", "of unknown version")
    function: Operator | None = getattr(torch_npu, name, None)
    if function is None:
        reporting.report(f"torch_npu {version} has no {name}: {otherwise}")
        return None
    if _lacks_gradient(name, version):
        reporting.report(f"torch_npu {version} computes no gradient of {name}: {otherwise}")
        return None
    return function


def _lacks_gradient(name: str, version: str) -> bool:
    """Whether a gradient is wanted and the operator would give none, silently."""
    import torch

    first = _DIFFERENTIABLE_FROM.get(name)
    if first is None or not torch.is_grad_enabled():
        return False
    try:
        return Version(version) < Version(first)
    except InvalidVersion:
        return False


def is_plain(*tensors: object) -> bool:
    """Return whether all are plain tensors or parameters: DTensors and quantised ones have operators of their own."""
    import torch

    return all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)


def promoted(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in the dtype that their product has, because the operators need one dtype."""
    import torch

    dtype = torch.promote_types(first.dtype, second.dtype)
    return first.to(dtype), second.to(dtype)
