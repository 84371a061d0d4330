"""What the tensors of a sync are: told once by the source, checked on every rank."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import MetadataError

if TYPE_CHECKING:
    import torch

__all__ = ["Metadata", "Spec"]

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Spec:
    """One parameter by name; `dtype` as torch names it, without `torch.`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    torch_dtype: Any = field(init=False, repr=False, compare=False)
    nbytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        import torch

        found = getattr(torch, self.dtype)
        # Looked up once: syncs compare with it for every tensor.
        object.__setattr__(self, "torch_dtype", found)
        object.__setattr__(self, "nbytes", math.prod(self.shape) * found.itemsize)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Metadata:
    """The parameters of a sync in their order, and a digest that two ranks share only if they agree on all of them."""

    __slots__ = ("digest", "specs")

    def __init__(self, specs: Iterable[Spec]) -> None:
        self.specs = tuple(specs)
        names = [spec.name for spec in self.specs]
        if len(set(names)) != len(names):
            twice = sorted(name for name in set(names) if names.count(name) > 1)[:SHOWN]
            raise MetadataError(f"weight sync: expected each parameter once, found twice: {', '.join(twice)}")
        self.digest = hashlib.sha256(self.as_json().encode()).hexdigest()

    @classmethod
    def of(cls, entries: Iterable[tuple[str, Iterable[int], torch.dtype]]) -> Metadata:
        """Make it from `(name, shape, dtype)`, the form in which verl's trainers keep it."""
        return cls(
            Spec(name, tuple(int(extent) for extent in shape), str(dtype).removeprefix("torch."))
            for name, shape, dtype in entries
        )

    @classmethod
    def from_json(cls, text: str) -> Metadata:
        return cls(Spec(name, tuple(shape), dtype) for name, shape, dtype in json.loads(text))

    def as_json(self) -> str:
        return json.dumps([(s.name, s.shape, s.dtype) for s in self.specs], separators=(",", ":"))

    def __len__(self) -> int:
        return len(self.specs)

    def __iter__(self) -> Iterator[Spec]:
        return iter(self.specs)

    def differences(self, other: Metadata, mine: str, others: str) -> list[str]:
        """Say what differs, a line each; `mine` and `others` are what the two sides are called."""
        left = {spec.name: spec for spec in self.specs}
        right = {spec.name: spec for spec in other.specs}
        found = [f"{name}: {mine} has it, {others} has not" for name in left if name not in right]
        found += [f"{name}: {others} has it, {mine} has not" for name in right if name not in left]
        for name in left:
            if name in right and left[name] != right[name]:
                found.append(f"{name}: {mine} has {left[name]}, {others} has {right[name]}")
        if not found and self.digest != other.digest:
            place = next(i for i, (a, b) in enumerate(zip(self.specs, other.specs, strict=True)) if a != b)
            found.append(
                f"parameter {place} is {self.specs[place].name} on {mine}, {other.specs[place].name} on {others}"
            )
        return found


def refusal(told: Mapping[int, Metadata], describe: Any) -> str | None:
    """Say how the ranks' metadata differ from rank 0's; None where all agree. The text is the same on every rank."""
    reference = told[0]
    lines: list[str] = []
    for rank, metadata in sorted(told.items()):
        if metadata.digest != reference.digest:
            lines += reference.differences(metadata, describe(0), describe(rank))
    if not lines:
        return None
    more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return (
        f"the ranks disagree about {len(lines)} parameters: {'; '.join(lines[:SHOWN])}{more}. Nothing was loaded. "
        "Give trainer and rollout the same model and dtype"
    )
