"""The names, shapes and dtypes of the tensors of a sync, which all ranks must agree on."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ....errors import MetadataError

if TYPE_CHECKING:
    import torch

__all__ = ["Entry", "Metadata", "Spec", "disagreement"]

SHOWN = 5

Entry: TypeAlias = "tuple[str, Iterable[int], torch.dtype]"
"""Name, shape and dtype, as verl's trainers list their parameters."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One parameter by name; `dtype` as torch names it, without `torch.`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    torch_dtype: torch.dtype = field(init=False, repr=False, compare=False)
    nbytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        import torch

        torch_dtype = getattr(torch, self.dtype)
        # Looked up once: syncs compare with it for every tensor.
        object.__setattr__(self, "torch_dtype", torch_dtype)
        object.__setattr__(self, "nbytes", math.prod(self.shape) * torch_dtype.itemsize)

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
            raise MetadataError(
                subject="parameters of a weight sync",
                expected="each name once",
                found=f"more than once: {', '.join(twice)}",
                fix="give each parameter of the trainer a name of its own",
            )
        self.digest = hashlib.sha256(self.as_json().encode()).hexdigest()

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Metadata:
        """Make it from the list that verl's trainers keep. Raises MetadataError if a name comes twice."""
        return cls(
            Spec(name, tuple(int(extent) for extent in shape), str(dtype).removeprefix("torch."))
            for name, shape, dtype in entries
        )

    @classmethod
    def from_json(cls, text: str) -> Metadata:
        """Read what `as_json` wrote."""
        return cls(Spec(name, tuple(shape), dtype) for name, shape, dtype in json.loads(text))

    def as_json(self) -> str:
        """Write it as one line."""
        return json.dumps([(s.name, s.shape, s.dtype) for s in self.specs], separators=(",", ":"))

    def __len__(self) -> int:
        return len(self.specs)

    def __iter__(self) -> Iterator[Spec]:
        return iter(self.specs)

    def differences(self, other: Metadata, mine: str, others: str) -> list[str]:
        """Say what differs, one line each; `mine` and `others` are the names of the two sides."""
        left = {spec.name: spec for spec in self.specs}
        right = {spec.name: spec for spec in other.specs}
        lines = [f"{name}: {mine} has it, {others} has not" for name in left if name not in right]
        lines += [f"{name}: {others} has it, {mine} has not" for name in right if name not in left]
        for name in left:
            if name in right and left[name] != right[name]:
                lines.append(f"{name}: {mine} has {left[name]}, {others} has {right[name]}")
        if not lines and self.digest != other.digest:
            place = next(i for i, (a, b) in enumerate(zip(self.specs, other.specs, strict=True)) if a != b)
            lines.append(
                f"parameter {place} is {self.specs[place].name} on {mine}, {other.specs[place].name} on {others}"
            )
        return lines


def disagreement(by_rank: Mapping[int, Metadata], describe: Callable[[int], str]) -> str | None:
    """Say how the ranks' metadata differ from rank 0's; None if all agree. The text is the same on every rank."""
    reference = by_rank[0]
    lines: list[str] = []
    for rank, metadata in sorted(by_rank.items()):
        if metadata.digest != reference.digest:
            lines += reference.differences(metadata, describe(0), describe(rank))
    if not lines:
        return None
    more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return f"differences ({len(lines)}): {'; '.join(lines[:SHOWN])}{more}"
