"""Memory that is no tensor's: what a plan adds to what was allocated, with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Reserve", "reserve_of"]

MIB, GIB = 1 << 20, 1 << 30
_BUFFER = 200
"""MiB of each direction, if HCCL_BUFFSIZE says nothing."""
_WORKSPACE = GIB
_FRAGMENTS = 0.05


@dataclass(frozen=True, slots=True)
class Reserve:
    """Bytes, what they are for, and who says so."""

    name: str
    size: int
    source: str


def reserve_of(groups: int, peak: int, exports: Mapping[str, str]) -> tuple[Reserve, ...]:
    """Return what a rank needs besides its tensors.

    Args:
        groups: process groups with other ranks that have communicated.
        peak: bytes of its tensors.
        exports: the script's variables.
    """
    given = exports.get("HCCL_BUFFSIZE", "")
    buffer = int(given) if given.isdigit() else _BUFFER
    return (
        Reserve(
            "HCCL's buffers",
            groups * 2 * buffer * MIB,
            f"2 x HCCL_BUFFSIZE ({buffer} MB) for each of {groups} communicators: CANN's document of HCCL_BUFFSIZE",
        ),
        Reserve("operators' workspace", _WORKSPACE, "an assumption: 1 GiB; nothing public says how much they take"),
        Reserve(
            "fragmentation",
            int(peak * _FRAGMENTS),
            "an assumption: 5 % of the tensors, with expandable segments, which verl switches on",
        ),
    )
