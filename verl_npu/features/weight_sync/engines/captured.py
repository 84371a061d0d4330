"""Detection of weights that moved in memory after an engine captured its graphs.

A captured graph contains addresses. If code replaces a weight with a new tensor instead of copying the values into the
old one, the graph still computes with the data at the old address. Code that reads the weight by its name gets the new
tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from .layout import Layout, layouts_of

if TYPE_CHECKING:
    import torch

Operand: TypeAlias = "tuple[str, int, list[int], list[int], str]"
"""An input tensor of a task in a graph: its name in the task, its address, shape, strides, and dtype."""
Task: TypeAlias = "tuple[str, list[Operand]]"
_PLACES = "_verl_npu_captured_at"


@dataclass(frozen=True, slots=True)
class _Place:
    """The address range of a tensor."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Reader:
    """A graph's task that reads a weight from the weight's old address."""

    operator: str
    operand: str
    tasks: int
    """How many tasks of all graphs read the weight. This object describes the first of these tasks."""


Places = Mapping[str, _Place]


def remember(model: torch.nn.Module) -> None:
    """Record the addresses of all tensors that the engine uses for computation. Call this function when graphs have
    been or will be captured."""
    setattr(model, _PLACES, _places(layouts_of(model)))


def remembered(model: torch.nn.Module, layouts: Iterable[Layout]) -> Places:
    """Return the recorded addresses of all tensors that the engine uses for computation.

    If no addresses were recorded, record the current addresses and return them.
    """
    found: Places | None = getattr(model, _PLACES, None)
    if found is None:
        found = _places(layouts)
        setattr(model, _PLACES, found)
    return found


def moved(before: Places, layouts: Iterable[Layout]) -> dict[str, _Place]:
    """Return the old addresses of all tensors that have moved, as a mapping from the engine's tensor names to
    addresses."""
    now = _places(layouts)
    return {name: place for name, place in before.items() if name in now and now[name].begin != place.begin}


def readers(places: Places) -> dict[str, Reader] | None:
    """Find the tasks in captured graphs that read from the memory ranges in `places`.

    Return a mapping from each tensor name in `places` to the first such task, or None if the graphs cannot be
    inspected, as on a real NPU.
    """
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
