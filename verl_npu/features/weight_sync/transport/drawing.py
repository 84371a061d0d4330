"""Drawing tensors from a trainer one by one, each changed or compared with what was announced."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ....errors import MetadataError
from .metadata import Spec

if TYPE_CHECKING:
    import torch

__all__ = ["Weight", "draw", "draw_no_more", "each", "exhaust"]

Weight: TypeAlias = "tuple[str, torch.Tensor]"
"""A parameter's name and its tensor."""


def draw(weights: Iterator[Weight], specs: Sequence[Spec]) -> list[torch.Tensor]:
    """Draw as many tensors as there are specs. Raises MetadataError if one is not as it was announced."""
    drawn = list(itertools.islice(weights, len(specs)))
    for spec, (name, tensor) in zip(specs, drawn, strict=False):
        if name != spec.name or tensor.shape != spec.shape or tensor.dtype != spec.torch_dtype:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise _changed(spec.name, f"{spec} as announced", f"{name} {dtype}{list(tensor.shape)}")
    if len(drawn) < len(specs):
        spec = specs[len(drawn)]
        raise _changed(spec.name, f"{spec} as announced", "no further parameter of the trainer")
    return [tensor for _, tensor in drawn]


def draw_no_more(weights: Iterator[Weight]) -> None:
    """Raise MetadataError if there is more than was announced."""
    extra = next(weights, None)
    if extra is not None:
        raise _changed(extra[0], "a parameter that was announced", "one more than was announced")


def each(
    weights: Iterable[Weight] | AsyncIterable[Weight], change: Callable[[str, torch.Tensor], torch.Tensor]
) -> Iterator[Weight] | AsyncIterator[Weight]:
    """Return the same names with what `change` makes of each tensor as it is drawn; asynchronous if `weights` is."""
    if isinstance(weights, AsyncIterable):
        return ((name, change(name, tensor)) async for name, tensor in weights)
    return ((name, change(name, tensor)) for name, tensor in weights)


def exhaust(weights: Iterable[Weight]) -> None:
    """Draw what is left: other trainers gather their shards of it together with this one."""
    for _ in weights:
        pass


def _changed(name: str, expected: str, found: str) -> MetadataError:
    return MetadataError(
        subject=name,
        expected=expected,
        found=found,
        fix="the trainer's parameters must stay the same between their announcement and the end of the sync",
    )
