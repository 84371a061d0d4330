"""What an engine computes with instead of what was sent, in words, as far as it can be recognised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..transport.digest import digest_of

if TYPE_CHECKING:
    import torch

__all__ = ["Difference", "Expected", "explain", "head_of"]

_HEAD = 4096


@dataclass(frozen=True, slots=True)
class Expected:
    """What this rank has to hold of one tensor that was sent."""

    source: str
    """The name under which it was sent."""
    shape: tuple[int, ...]
    digest: int
    """After a cast to the engine's dtype."""
    head: int
    """The digest of how it begins."""
    rank: int | None
    """Which of the shares it is, or None if it is not divided."""
    heads: Mapping[int, int]
    """Digests of how the shares of other ranks begin."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor of the engine, or a part of it, that is not what was sent."""

    parameter: str
    """The engine's name, or nothing if it has no such parameter."""
    source: str
    """The name under which it was sent, or nothing if it was not."""
    found: str

    def __str__(self) -> str:
        return f"{self.source or self.parameter}: {self.found}"


def head_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the first elements of a tensor: enough to recognise it by, and cheap for tensors that are large."""
    flat = (
        tensor.reshape(-1) if tensor.is_contiguous() else tensor[: _HEAD // max(1, tensor[0].numel()) + 1].reshape(-1)
    )
    return flat[:_HEAD]


def explain(expected: Expected, held: torch.Tensor, stale: bool, sent: Mapping[int, Sequence[str]]) -> str:
    """Say what is held, on the host, instead of `expected`. `sent` are the names by how their shares begin."""
    import torch

    if held.dtype.is_floating_point and bool(held.isnan().all()):
        return "the engine holds nothing but NaN, as memory that slept and was not filled again"
    if not bool(held.any()):
        return "the engine holds nothing but zeros"
    if stale:
        return "the engine holds what it held before this sync"
    head = digest_of(head_of(held))
    for rank, other in expected.heads.items():
        if head == other:
            return f"rank {expected.rank} of the engine holds the share of rank {rank}"
    others = [name for name in sent.get(head, ()) if name != expected.source]
    if others:
        return f"the engine holds what was sent as {others[0]}"
    if held.dim() == 2 and expected.digest in (digest_of(held.T), digest_of(held.reshape(held.T.shape).T)):
        return "the engine holds it transposed"
    for narrow in (torch.bfloat16, torch.float16):
        if held.dtype.itemsize > narrow.itemsize and torch.equal(held.to(narrow).to(held.dtype), held):
            return f"the engine holds other values, all of which {str(narrow).removeprefix('torch.')} can hold"
    return "the engine holds other values"
