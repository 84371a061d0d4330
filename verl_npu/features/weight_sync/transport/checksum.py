"""Tensors as bytes, and what is computed of the bytes to compare them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .metadata import Spec

__all__ = ["add_to_digest", "as_bytes", "checksum_of"]


def as_bytes(tensor: Any) -> Any:
    """All bytes of a tensor in a row, uint8: its own memory where it is contiguous, a copy where not."""
    import torch

    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def checksum_of(buffer: Any) -> Any:
    """Two sums over all bytes; the second changes where blocks of them trade places."""
    import torch

    if buffer.storage_offset() % 8:
        # A large tensor is sent from where it lies, and a word cannot be read from there.
        buffer = buffer.clone()
    words = buffer[: buffer.numel() // 8 * 8].view(torch.int64)
    rest = buffer[words.numel() * 8 :].to(torch.int64).sum()
    rows = words[: words.numel() // 512 * 512].view(-1, 512).sum(1)
    places = 2 * torch.arange(rows.numel(), dtype=torch.int64, device=buffer.device) + 1
    return torch.stack((words.sum() + rest, (rows * places).sum() + rest))


def add_to_digest(total: Any, specs: Sequence[Spec], tensors: Sequence[Any]) -> None:
    """Add names and bytes to a hash."""
    for spec, tensor in zip(specs, tensors, strict=True):
        total.update(spec.name.encode() + b"\0")
        total.update(as_bytes(tensor).cpu().numpy().tobytes())
