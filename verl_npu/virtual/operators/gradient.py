"""Operators without an autograd formula: a gradient through them must fail, as on a real NPU, and not come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class _NoFormula(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, name: str, compute: Callable[[], tuple[torch.Tensor, ...]], *inputs: Any) -> Any:
        ctx.name = name
        return compute()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"derivative for npu::{ctx.name} is not implemented")


def without_formula(
    name: str, inputs: tuple[Any, ...], compute: Callable[[], tuple[torch.Tensor, ...]]
) -> tuple[torch.Tensor, ...]:
    """Run `compute`; where one of `inputs` requires a gradient, the results raise in backward, with the operator's
    name."""
    results: tuple[torch.Tensor, ...] = _NoFormula.apply(name, compute, *inputs)
    return results
