"""Numbers that stand for the bytes of tensors, and change if one of them changes or two trade places."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from .... import environment
from ....errors import SettingError
from .checksum import as_bytes

if TYPE_CHECKING:
    import torch

__all__ = ["Digest", "digest_of"]


class Digest:
    """SHA-256 over the names and digests of tensors, in their order."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add one tensor."""
        self._hash.update(name.encode() + b"\0")
        self._hash.update(digest_of(tensor).to_bytes(8, "little"))

    def __str__(self) -> str:
        return self._hash.hexdigest()


def digest_of(tensor: torch.Tensor) -> int:
    """Return 64 bits (XXH3) for the bytes of a tensor in their order, whatever its shape, dtype and device.

    It finds what went wrong, and keeps nobody from making two tensors with the same digest.

    Raises:
        SettingError: the package xxhash is not installed.
    """
    try:
        # Not a dependency of ours: datasets needs it, and verl needs datasets.
        import xxhash
    except ImportError as error:
        check = environment.WEIGHT_SYNC_CHECK
        raise SettingError(
            subject=f"{check.name}={check.text()}",
            expected="the package xxhash, which datasets brings",
            found=f"{type(error).__name__}: {error}",
            fix=f"pip install xxhash, or unset {check.name}",
        ) from error
    return int(xxhash.xxh3_64_intdigest(as_bytes(tensor).cpu().numpy().data))
