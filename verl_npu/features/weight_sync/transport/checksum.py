"""Tensors as bytes, and the sums by which a bucket of them is compared on the NPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["as_bytes", "checksum_of"]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return all bytes of a tensor in a row, uint8: its own memory if it is contiguous, else a copy."""
    import torch

    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def checksum_of(buffer: torch.Tensor) -> torch.Tensor:
    """Return two sums over all bytes, int64; the second one changes if blocks of bytes trade places."""
    import torch

    if buffer.storage_offset() % 8:
        # A large tensor is sent from its own memory, and words of 8 bytes cannot be read from this address.
        buffer = buffer.clone()
    words = buffer[: buffer.numel() // 8 * 8].view(torch.int64)
    rest = buffer[words.numel() * 8 :].to(torch.int64).sum()
    rows = words[: words.numel() // 512 * 512].view(-1, 512).sum(1)
    places = 2 * torch.arange(rows.numel(), dtype=torch.int64, device=buffer.device) + 1
    return torch.stack((words.sum() + rest, (rows * places).sum() + rest))
