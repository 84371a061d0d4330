"""Tensors for the tests of the reference operators."""

from __future__ import annotations

from typing import Any


def draw(*shape: int, seed: int = 0, **options: Any) -> Any:
    """Return random numbers that depend only on the seed."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **options)


def ints(*values: Any) -> Any:
    """Return values as int32, the type of lengths and indices."""
    import torch

    return torch.tensor(values, dtype=torch.int32)
