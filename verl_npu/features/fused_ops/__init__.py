"""torch_npu's fused operators in the Qwen models: norms, gated layers, rotary embeddings, and mixtures of experts.

The oldest pin of verl uses almost none of them. Later pins use some wrongly, and use none if one model's file is
missing. Here the patches are independent of each other, and upstream's code runs wherever an operator cannot.
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
"""A verl with this function patches each model separately, and no longer all or none."""
fused_ops = Feature(
    "fused_ops", "Qwen models use torch_npu's fused operators where upstream does not.", after=NPU_PATCH
)


def upstream_assigns(target: str) -> Probe:
    """Return the probe that tells whether upstream patches `target`, each model separately."""
    return AllOf(UPSTREAM_PATCHES_EACH_MODEL, Assigns(upstreams.NPU_PATCH, target))


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
    """Declare the patch `name`, which sends calls of `target` to `implementation`.

    By default, the patch is retired if upstream assigns the same target.
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
"""The first torch_npu that computes an operator's gradient. 2.5.1 has both operators but returns no gradients."""
Operator: TypeAlias = Callable[..., Any]
"""A function of torch_npu, which has no types: it returns a tensor or several."""


def operator(name: str, tensor: Tensor, otherwise: str = "upstream's own code runs instead") -> Operator | None:
    """Return torch_npu's operator `name` for a tensor on an NPU.

    Return None if the tensor is on another device, or if this build of torch_npu lacks the operator or its gradient.
    A line tells the user once that it is missing, and what happens `otherwise`.
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
    """Tell whether torch wants a gradient that the operator silently would not compute."""
    import torch

    first = _DIFFERENTIABLE_FROM.get(name)
    if first is None or not torch.is_grad_enabled():
        return False
    try:
        return Version(version) < Version(first)
    except InvalidVersion:
        return False


def is_plain(*tensors: object) -> bool:
    """Tell whether all are plain tensors or parameters. DTensors and quantized tensors have their own operators."""
    import torch

    return all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)


def promoted(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Cast both tensors to the dtype of their product, because the operators need one dtype."""
    import torch

    dtype = torch.promote_types(first.dtype, second.dtype)
    return first.to(dtype), second.to(dtype)
