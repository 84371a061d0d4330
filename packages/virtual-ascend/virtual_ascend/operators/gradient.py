"""Operators without an autograd formula: a backward pass through them must fail, as on a real NPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, Protocol

import torch


class _Context(Protocol):
    """The state that torch.autograd.Function keeps from forward to backward."""

    name: str


class _NoFormula(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: _Context, name: str, compute: Callable[[], tuple[torch.Tensor, ...]], *inputs: object
    ) -> tuple[torch.Tensor, ...]:
        ctx.name = name
        return compute()

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> NoReturn:
        raise RuntimeError(f"derivative for npu::{ctx.name} is not implemented")


def without_formula(
    name: str, inputs: tuple[object, ...], compute: Callable[[], tuple[torch.Tensor, ...]]
) -> tuple[torch.Tensor, ...]:
    """Run `compute`. If one of `inputs` requires a gradient, the backward pass raises an error that names the
    operator."""
    results: tuple[torch.Tensor, ...] = _NoFormula.apply(name, compute, *inputs)
    return results
