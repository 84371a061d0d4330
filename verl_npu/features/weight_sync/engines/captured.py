"""Weights that lie elsewhere than when an engine captured its graphs.

A graph holds addresses. Whoever puts a new tensor in the place of a weight, and does not copy into the old one, leaves
the graph computing with what is at the old address, while all that reads the weight by its name finds the new one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from .layout import Layout, layouts_of

if TYPE_CHECKING:
    import torch

__all__ = ["Reader", "moved", "readers", "remember", "remembered"]

Operand: TypeAlias = "tuple[str, int, list[int], list[int], str]"
"""A tensor that a task was given: its name there, address, shape, strides and dtype."""
Task: TypeAlias = "tuple[str, list[Operand]]"
_PLACES = "_verl_npu_captured_at"


@dataclass(frozen=True, slots=True)
class _Place:
    """The addresses of a tensor."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Reader:
    """What reads a weight where it no longer is."""

    operator: str
    operand: str
    tasks: int
    """How many tasks of all graphs do so; this is the first."""


Places = Mapping[str, _Place]


def remember(model: torch.nn.Module) -> None:
    """Note where all that the engine computes with lies: its graphs have been captured, or are about to be."""
    setattr(model, _PLACES, _places(layouts_of(model)))


def remembered(model: torch.nn.Module, layouts: Iterable[Layout]) -> Places:
    """Return where all that the engine computes with lay when it captured its graphs. If nobody has noted that, it is
    where it lies now, which is noted."""
    found: Places | None = getattr(model, _PLACES, None)
    if found is None:
        found = _places(layouts)
        setattr(model, _PLACES, found)
    return found


def moved(before: Places, layouts: Iterable[Layout]) -> dict[str, _Place]:
    """Return the old places of all that lies elsewhere now, by the engine's names."""
    now = _places(layouts)
    return {name: place for name, place in before.items() if name in now and now[name].begin != place.begin}


def readers(places: Places) -> dict[str, Reader] | None:
    """Return what captured graphs read at these places, by the names of what lay there; None if nothing can tell, as
    on a real NPU."""
    captured = cast(
        "Callable[[], list[list[Task]]] | None", getattr(sys.modules.get("torch_npu"), "__captured__", None)
    )
    if captured is None:
        return None
    operands = [(operator, operand) for tasks in captured() for operator, given in tasks for operand in given]
    found = {}
    for name, place in places.items():
        reading = [each for each in operands if place.begin <= each[1][1] < place.end]
        if reading:
            operator, operand = reading[0]
            found[name] = Reader(operator, operand[0], len(reading))
    return found


def _places(layouts: Iterable[Layout]) -> dict[str, _Place]:
    return dict(_each_place(layouts))


def _each_place(layouts: Iterable[Layout]) -> Iterator[tuple[str, _Place]]:
    for layout in layouts:
        tensor = layout.read()
        if tensor.numel() > 0:
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            yield layout.name, _Place(tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size())
