"""Drawing tensors from a trainer, each changed or held against what was announced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..errors import MetadataError
from .metadata import Spec

__all__ = ["draw", "draw_no_more", "each", "exhaust"]


def draw(drawn: Iterator[tuple[str, Any]], specs: Sequence[Spec]) -> list[Any]:
    """Draw as many tensors as there are specs, and hold each against what was announced."""
    pairs = list(itertools.islice(drawn, len(specs)))
    for spec, (name, tensor) in zip(specs, pairs, strict=False):
        if name != spec.name or tensor.shape != spec.shape or tensor.dtype != spec.torch_dtype:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise MetadataError(
                f"{spec.name}: announced as {spec}, the trainer gave {name} {dtype}{list(tensor.shape)}"
            )
    if len(pairs) < len(specs):
        spec = specs[len(pairs)]
        raise MetadataError(f"{spec.name}: announced as {spec}, and the trainer has no such parameter now")
    return [tensor for _, tensor in pairs]


def draw_no_more(drawn: Iterator[tuple[str, Any]]) -> None:
    """Raise MetadataError where there is more than was announced."""
    extra = next(drawn, None)
    if extra is not None:
        raise MetadataError(f"{extra[0]}: the trainer gave it, and it was not announced")


def each(weights: Any, change: Callable[[str, Any], Any]) -> Any:
    """The same names, with what `change` makes of each tensor as it is drawn; asynchronous where `weights` is."""
    if hasattr(weights, "__aiter__"):
        return ((name, change(name, tensor)) async for name, tensor in weights)
    return ((name, change(name, tensor)) for name, tensor in weights)


def exhaust(tensors: Iterable[tuple[str, Any]]) -> None:
    """Draw what is left, for the sake of those who gather it together with this rank."""
    for _ in tensors:
        pass
