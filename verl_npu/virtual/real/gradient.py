"""Gradients of the references."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

__all__ = ["vjp"]


def vjp(
    function: Callable[..., object], inputs: Sequence[torch.Tensor | None], gradients: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Differentiate `function` at `inputs`; an input that is None has no gradient."""
    with torch.enable_grad():
        leaves = [None if x is None else x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
        outputs = function(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [
            (output, gradient.to(output.dtype))
            for output, gradient in zip(outputs, gradients, strict=False)
            if isinstance(output, torch.Tensor) and output.requires_grad and gradient is not None
        ]
        wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        found = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
    given = [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]
    return [
        torch.zeros_like(leaf) if leaf is not None and leaf.requires_grad and gradient is None else gradient
        for leaf, gradient in zip(leaves, given, strict=True)
    ]
