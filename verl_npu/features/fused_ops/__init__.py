"""torch_npu's fused operators in the Qwen models: norms, gated layers, rotary embeddings, and mixtures of experts.

The oldest pin of verl uses almost none of these operators. Later pins use some of them incorrectly, and use none if
the file of a single model is missing. The patches of verl-npu are independent of each other. Wherever an operator
cannot be used, upstream's own code runs.
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
UPSTREAM_PATCHES_EACH_MODEL: Probe = Defines(f"{NPU_PATCH}:apply_npu_patches")
"""A probe that asks whether this verl version patches each model separately. Without `apply_npu_patches`, verl patches
all models or none."""
fused_ops = Feature(
    "fused_ops", "Qwen models use torch_npu's fused operators where upstream does not.", after=NPU_PATCH
)


def upstream_assigns(target: str) -> Probe:
    """Return the probe that asks whether this verl version patches `target`, and patches each model separately."""
    return AllOf(UPSTREAM_PATCHES_EACH_MODEL, Assigns(upstreams.NPU_PATCH, target))


def modeling(model: str) -> str:
    """Return the full name of the transformers module that defines a model."""
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
    """Declare the patch `name`, which redirects calls of `target` to `implementation`.

    Without `retired_by`, the patch is retired once upstream itself patches the same target.
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
"""For some operators, the first torch_npu that computes their gradients. 2.5.1 has these operators without
gradients."""
Operator: TypeAlias = Callable[..., Any]
"""A function of torch_npu. torch_npu has no types; the function returns a tensor or several."""


def operator(name: str, tensor: Tensor, otherwise: str = "upstream's own code runs instead") -> Operator | None:
    """Return torch_npu's operator `name` if `tensor` is on an NPU.

    Return None if the tensor is on another device, or if this torch_npu version lacks the operator or its gradient. If
    the operator or its gradient is missing, print one line, once. `otherwise` is the part of the line that describes
    the consequence.
    """
    if tensor.device.type != "npu" or tensor.numel() == 0:
        return None
    import torch_npu

    version = getattr(torch_npu, "__version__", "of an unknown version")
    function: Operator | None = getattr(torch_npu, name, None)
    if function is None:
        reporting.report(f"torch_npu {version} has no {name}: {otherwise}")
        return None
    if _lacks_gradient(name, version):
        reporting.report(f"torch_npu {version} does not compute the gradient of {name}: {otherwise}")
        return None
    return function


def _lacks_gradient(name: str, version: str) -> bool:
    """Return whether torch would need a gradient that this version of the operator silently fails to compute."""
    import torch

    first = _DIFFERENTIABLE_FROM.get(name)
    if first is None or not torch.is_grad_enabled():
        return False
    try:
        return Version(version) < Version(first)
    except InvalidVersion:
        return False


def is_plain(*tensors: object) -> bool:
    """Return whether all arguments are plain tensors or parameters, and not DTensors or quantized tensors, which have
    their own operators."""
    import torch

    return all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)


def promoted(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Cast both tensors to the dtype that their product would have, because the operators need a single dtype."""
    import torch

    dtype = torch.promote_types(first.dtype, second.dtype)
    return first.to(dtype), second.to(dtype)
