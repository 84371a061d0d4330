"""Captures operators that are written in Python into a graph.

Each operator is one task, like the kernel that it replaces. The task keeps the addresses of its tensors and the host
values of its arguments, and is computed again at each replay. The individual steps of such an operator cannot be
captured, for two reasons: they wait for values, which a capture refuses, and the number of steps depends on values. A
call that needs a gradient is captured step by step nevertheless, because each step has its own gradient. A fused
operator (fused.py) is a single step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from ..device.extension import extension

# These operators return a size of memory, and compute nothing.
_HOST_ONLY = ("_get_workspace", "_get_max_workspace")

_under_way = 0
_follower: Follower | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """A placeholder for an NPU tensor in the arguments that a graph keeps."""

    number: int


@dataclass(slots=True)
class Call:
    """A call in a graph."""

    name: str
    function: Callable[..., object]
    given: dict[str, object]
    """The arguments, with a placeholder for each NPU tensor."""
    tensors: list[torch.Tensor]
    """Weak references to the tensors of the arguments, then of the results."""
    names: list[str]

    def add(self) -> None:
        """Add the call to the graph that is being captured."""
        extension().add_to_graph(self.name, self.tensors, self.names, self._again())

    def change(self, given: Mapping[str, object]) -> None:
        """Replace the values of some of the call's arguments."""
        for name, value in given.items():
            if name not in self.given:
                continue
            self.given[name] = _replaced(value, functools.partial(self._place, name))

    def _place(self, name: str, _tensor: torch.Tensor) -> object:
        raise RuntimeError(f"{self.name}: {name} is an NPU tensor, and a graph update cannot replace NPU tensors")

    def _again(self) -> Callable[[list[torch.Tensor]], None]:
        function, given, count = self.function, dict(self.given), _count(self.given)

        def again(tensors: list[torch.Tensor]) -> None:
            values = {name: _filled(value, tensors) for name, value in given.items()}
            fresh = _fresh(function(**values), tensors[:count])
            for target, value in zip(tensors[count:], fresh.values(), strict=True):
                target.copy_(value)

        return again


Follower = Callable[[Call, Callable[[], None]], None]
"""A function that adds a call to a graph by calling its second argument. It can do other work before and after
this."""


def begin() -> None:
    """Record the beginning of a graph capture or a graph update."""
    global _under_way
    _under_way += 1


def end() -> None:
    """Record the end of a graph capture or a graph update."""
    global _under_way
    _under_way -= 1


def follow(follower: Follower | None) -> None:
    """Set the function that adds calls to the graph during the next capture. None removes the function."""
    global _follower
    _follower = follower


def call(name: str, function: Callable[..., object], given: Mapping[str, object]) -> object:
    """Call an operator, and add the call to the graph if one is being captured."""
    if not _under_way or name.endswith(_HOST_ONLY) or not _is_captured(given):
        return function(**given)
    device = extension()
    tensors: list[torch.Tensor] = []
    names: list[str] = []

    def place(argument: str, tensor: torch.Tensor) -> object:
        for number, known in enumerate(tensors):
            if known is tensor:
                return _Place(number)
        tensors.append(tensor)
        names.append(f"argument {argument}")
        return _Place(len(tensors) - 1)

    kept = {argument: _replaced(value, functools.partial(place, argument)) for argument, value in given.items()}
    results = device.inside_operator(lambda: function(**given))
    moved = {number: device.place_in_graph(value) for number, value in _fresh(results, tensors).items()}
    tensors += moved.values()
    names += ["the result"] * len(moved)
    written = Call(name, function, kept, [device.weak_tensor(tensor) for tensor in tensors], names)
    if _follower is None:
        written.add()
    else:
        _follower(written, written.add)
    return _exchanged(results, moved)


def _is_captured(given: Mapping[str, object]) -> bool:
    found: list[torch.Tensor] = []
    for value in given.values():
        _replaced(value, found.append)
    if not found or not extension().is_recording(found[0].device.index):
        return False
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in found))


def _replaced(value: object, place: Callable[[torch.Tensor], object]) -> object:
    """Return a copy of an argument, with its NPU tensors replaced by `place`. The caller cannot change this copy."""
    if isinstance(value, torch.Tensor):
        return place(value) if value.device.type == "npu" else value.clone()
    if isinstance(value, list | tuple):
        return type(value)([_replaced(each, place) for each in value])
    return value


def _filled(value: object, tensors: list[torch.Tensor]) -> object:
    if isinstance(value, _Place):
        return tensors[value.number]
    if isinstance(value, list | tuple):
        return type(value)([_filled(each, tensors) for each in value])
    return value


def _count(value: object) -> int:
    """Return how many tensors the arguments of a call have."""
    if isinstance(value, _Place):
        return value.number + 1
    each = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return max(map(_count, each), default=0)


def _fresh(results: object, given: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the results that share no memory with an argument. Each key is the id of a result, and each result occurs
    once."""
    if isinstance(results, torch.Tensor):
        mine = results.untyped_storage().data_ptr()
        known = any(tensor.untyped_storage().data_ptr() == mine for tensor in given)
        return {} if known or results.device.type != "npu" else {id(results): results}
    if isinstance(results, list | tuple):
        return {number: fresh for each in results for number, fresh in _fresh(each, given).items()}
    return {}


def _exchanged(results: object, by: Mapping[int, torch.Tensor]) -> object:
    if isinstance(results, torch.Tensor):
        return by.get(id(results), results)
    if isinstance(results, list | tuple):
        return type(results)([_exchanged(each, by) for each in results])
    return results
