"""What operators of earlier versions of torch_npu refuse, although their schemas are the same.

Seen on the wheels: schemas.json knows names and types only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from packaging.version import Version

__all__ = ["RESTRICTIONS", "Restriction", "of_operator"]

Given = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Restriction:
    """What an operator refuses in versions before the one that takes it."""

    operator: str
    before: str
    applies: Callable[[Given], bool]
    """Whether these arguments are refused."""
    message: str


def _asks_for_a_gradient(given: Given) -> bool:
    import torch

    tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _undifferentiable(operator: str, before: str) -> Restriction:
    # With these wheels the gradients of its inputs are None, and a warning is all that says so.
    message = f"has no gradient before torch_npu {before}, which leaves the gradients of its inputs None"
    return Restriction(operator, before, _asks_for_a_gradient, message)


RESTRICTIONS = (
    _undifferentiable("npu_moe_token_permute", "2.7.1"),
    _undifferentiable("npu_moe_token_unpermute", "2.7.1"),
    _undifferentiable("npu_fast_gelu", "2.9.0"),
    Restriction(
        "npu_grouped_matmul",
        "2.6",
        lambda given: given["group_type"] == 2,
        "Invalid value of group_type [2], which should only be one of -1/0.",
    ),
)


def of_operator(operator: str, version: str) -> tuple[Restriction, ...]:
    """Return what `operator` refuses in this version of torch_npu."""
    installed = Version(version)
    return tuple(each for each in RESTRICTIONS if each.operator == operator and installed < Version(each.before))
