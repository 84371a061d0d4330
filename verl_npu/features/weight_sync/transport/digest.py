"""Numbers that stand for the bytes of tensors, and change if one of them changes or two trade places."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING

from .checksum import as_bytes

if TYPE_CHECKING:
    import torch

__all__ = ["Digest", "digest_of"]

_WORDS = 4096
"""Words of 4 bytes in a row; 64 rows and their products fit into a processor's cache."""
_ROWS = 64


class Digest:
    """SHA-256 over the names and digests of tensors, in their order."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add one tensor."""
        self._hash.update(name.encode() + b"\0")
        self._hash.update(digest_of(tensor).to_bytes(8, "little", signed=True))

    def __str__(self) -> str:
        return self._hash.hexdigest()


def digest_of(tensor: torch.Tensor) -> int:
    """Return 64 bits for the bytes of a tensor in their order, whatever its shape, dtype and device.

    Rows of words are multiplied by fixed random numbers, and the sums are taken for words in turn. Two tensors that
    differ have the same digest once in about 2**32 cases; nobody is kept from making such a pair.
    Source: multilinear hashing, D. Lemire and O. Kaser, Strongly universal string hashing is fast, 2014.
    """
    import torch

    flat = as_bytes(tensor).cpu()
    length: int = flat.numel()
    level = 0
    while True:
        sums = _sums(flat, level)
        if sums.numel() == 1:
            # Zeros at the end are not in the sums.
            value: int = sums.item()
            return value ^ length
        flat = sums.view(torch.uint8)
        level += 1


def _sums(flat: torch.Tensor, level: int) -> torch.Tensor:
    """Return a sum for each row of words, int64; the last row may be shorter, and ends with zeros."""
    import torch

    if flat.numel() % 4 or flat.storage_offset() % 4:
        flat = torch.nn.functional.pad(flat, (0, -flat.numel() % 4)).clone()
    words = flat.view(torch.int32)
    keys = _keys(level)
    whole = words.numel() // _WORDS
    rows = words[: whole * _WORDS].view(whole, _WORDS)
    sums = [torch.mv(part.to(torch.int64), keys) for part in rows.split(_ROWS) if len(part)]
    rest = words[whole * _WORDS :]
    if rest.numel() or not sums:
        sums.append((rest.to(torch.int64) * keys[: rest.numel()]).sum().reshape(1))
    return torch.cat(sums)


@cache
def _keys(level: int) -> torch.Tensor:
    import torch

    limits = torch.iinfo(torch.int64)
    generator = torch.Generator().manual_seed(level)
    return torch.randint(limits.min, limits.max, (_WORDS,), generator=generator, dtype=torch.int64)
