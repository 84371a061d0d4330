"""The tensors of a sync: their metadata, which must match on all ranks, their retrieval from the trainer, and their
digests."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from .... import environment
from ....errors import SettingError, WeightSyncError

if TYPE_CHECKING:
    import torch

SHOWN = 5
Entry: TypeAlias = "tuple[str, Iterable[int], torch.dtype]"
"""A name, a shape, and a dtype, as in the lists that verl's trainers make."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The name, shape, and dtype of one parameter. `dtype` is the name of the torch dtype without the prefix
    `torch.`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    torch_dtype: torch.dtype = field(init=False, repr=False, compare=False)
    nbytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        import torch

        torch_dtype = getattr(torch, self.dtype)
        # Looked up once, because syncs compare it for every tensor.
        object.__setattr__(self, "torch_dtype", torch_dtype)
        object.__setattr__(self, "nbytes", math.prod(self.shape) * torch_dtype.itemsize)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Metadata:
    """The parameters of a sync, in order, and a digest of them. Two ranks have the same digest only if all their
    parameters match."""

    __slots__ = ("digest", "specs")

    def __init__(self, specs: Iterable[Spec]) -> None:
        self.specs = tuple(specs)
        names = [spec.name for spec in self.specs]
        if len(set(names)) != len(names):
            twice = sorted(name for name in set(names) if names.count(name) > 1)[:SHOWN]
            raise WeightSyncError(
                subject="parameters of a weight sync",
                found=f"several parameters have the same name: {', '.join(twice)}",
                fix="give each of the trainer's parameters a different name",
            )
        self.digest = hashlib.sha256(self.as_json().encode()).hexdigest()

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Metadata:
        """Create the metadata from a trainer's list of tensors. Raises WeightSyncError if a name occurs twice."""
        return cls(
            Spec(name, tuple(int(extent) for extent in shape), str(dtype).removeprefix("torch."))
            for name, shape, dtype in entries
        )

    @classmethod
    def from_json(cls, text: str) -> Metadata:
        """Read metadata from the string that `as_json` returns."""
        return cls(Spec(name, tuple(shape), dtype) for name, shape, dtype in json.loads(text))

    def as_json(self) -> str:
        """Return the metadata as one line of JSON."""
        return json.dumps([(s.name, s.shape, s.dtype) for s in self.specs], separators=(",", ":"))

    def __len__(self) -> int:
        return len(self.specs)

    def __iter__(self) -> Iterator[Spec]:
        return iter(self.specs)

    def differences(self, other: Metadata, mine: str, others: str) -> list[str]:
        """Return one line for each difference. `mine` and `others` are the names of the two ranks in these lines."""
        left = {spec.name: spec for spec in self.specs}
        right = {spec.name: spec for spec in other.specs}
        lines = [f"{name}: on {mine}, but not on {others}" for name in left if name not in right]
        lines += [f"{name}: on {others}, but not on {mine}" for name in right if name not in left]
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
    """Describe how the metadata of the ranks differ from the metadata of rank 0. Return None if all ranks agree. The
    result is the same on all ranks."""
    reference = by_rank[0]
    lines: list[str] = []
    for rank, metadata in sorted(by_rank.items()):
        if metadata.digest != reference.digest:
            lines += reference.differences(metadata, describe(0), describe(rank))
    if not lines:
        return None
    more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return f"differences ({len(lines)}): {'; '.join(lines[:SHOWN])}{more}"


Weight: TypeAlias = "tuple[str, torch.Tensor]"
"""A parameter's name and its tensor."""


def draw(weights: Iterator[Weight], specs: Sequence[Spec]) -> list[torch.Tensor]:
    """Take one tensor for each spec from the iterator `weights`. Raises WeightSyncError if a tensor does not have the
    name, shape, and dtype of its spec."""
    drawn = list(itertools.islice(weights, len(specs)))
    for spec, (name, tensor) in zip(specs, drawn, strict=False):
        if name != spec.name or tensor.shape != spec.shape or tensor.dtype != spec.torch_dtype:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise _changed(spec.name, f"{spec} as announced", f"{name} {dtype}{list(tensor.shape)}")
    if len(drawn) < len(specs):
        spec = specs[len(drawn)]
        raise _changed(spec.name, f"{spec} as announced", "no such parameter")
    return [tensor for _, tensor in drawn]


def draw_no_more(weights: Iterator[Weight]) -> None:
    """Raise WeightSyncError if `weights` yields more tensors than were announced."""
    extra = next(weights, None)
    if extra is not None:
        raise _changed(extra[0], "only announced parameters", "a parameter that was not announced")


def each(
    weights: Iterable[Weight] | AsyncIterable[Weight], change: Callable[[str, torch.Tensor], torch.Tensor]
) -> Iterator[Weight] | AsyncIterator[Weight]:
    """Return an iterator over the weights that applies `change` to each tensor as it is consumed. The iterator is
    asynchronous if `weights` is."""
    if isinstance(weights, AsyncIterable):
        return ((name, change(name, tensor)) async for name, tensor in weights)
    return ((name, change(name, tensor)) for name, tensor in weights)


def exhaust(weights: Iterable[Weight]) -> None:
    """Consume the remaining tensors. All trainers gather their shards together, so the other trainers would hang if
    this rank stopped early."""
    for _ in weights:
        pass


def _changed(name: str, expected: str, found: str) -> WeightSyncError:
    return WeightSyncError(
        subject=name,
        expected=expected,
        found=found,
        fix="keep the trainer's parameters unchanged from the beginning of the sync to its end",
    )


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return all bytes of a tensor as a 1D uint8 tensor. If the tensor is contiguous, the result shares its memory;
    otherwise, the result is a copy."""
    import torch

    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def checksum_of(buffer: torch.Tensor) -> torch.Tensor:
    """Return two int64 checksums over all bytes. The second checksum depends on the order of the bytes, so it detects
    swapped blocks."""
    import torch

    if buffer.storage_offset() % 8:
        # A large tensor is sent from its own memory, and 8-byte words cannot be read from an unaligned address.
        buffer = buffer.clone()
    words = buffer[: buffer.numel() // 8 * 8].view(torch.int64)
    rest = buffer[words.numel() * 8 :].to(torch.int64).sum()
    rows = words[: words.numel() // 512 * 512].view(-1, 512).sum(1)
    places = 2 * torch.arange(rows.numel(), dtype=torch.int64, device=buffer.device) + 1
    return torch.stack((words.sum() + rest, (rows * places).sum() + rest))


def digest_of(tensor: torch.Tensor) -> int:
    """Return a 64-bit digest (XXH3) of a tensor's bytes, in order. The digest does not depend on shape, dtype, or
    device.

    The digest detects faults. It does not protect against deliberately constructed tensors with the same digest.
    Raises SettingError if the package xxhash is not installed.
    """
    try:
        # xxhash is not a dependency of verl-npu: datasets requires xxhash, and verl requires datasets.
        import xxhash
    except ImportError as error:
        check = environment.WEIGHT_SYNC_CHECK
        raise SettingError(
            subject=f"{check.name}={check.text()}",
            found=f"this check needs the package xxhash, which cannot be imported: {type(error).__name__}: {error}",
            fix=f"run `pip install xxhash`, or unset {check.name}",
        ) from error
    return int(xxhash.xxh3_64_intdigest(as_bytes(tensor).cpu().numpy().data))
