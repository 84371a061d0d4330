"""What the NPUs of a plan have and do at their best, and the memory that is no tensor's: each with its source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_npu.language import gettext as _

GIB = 1 << 30
_MIB = 1 << 20
_BUFFER = 200
"""MiB of each direction, if HCCL_BUFFSIZE says nothing."""
_WORKSPACE = 1 << 30
_FRAGMENTS = 0.05


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, and who says so."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """One NPU as torch sees it: of an A3, one of the two dies of a chip."""

    name: str
    memory: Figure
    """Bytes that torch_npu can allocate from: what driver and CANN keep is not among them."""
    flops: Figure
    """bfloat16, a second."""
    bandwidth: Figure
    """Bytes of its memory, a second."""
    link: Figure
    """Bytes to the other NPUs of its node, a second."""
    network: Figure
    """Bytes to other nodes, a second."""
    host: Figure
    """Bytes from and to the host, a second."""


def _read(name: str, **figures: Any) -> Hardware:
    return Hardware(name, **{each: Figure(**figure) for each, figure in figures.items()})


_ROWS = json.loads(Path(__file__).with_name("hardware.json").read_text(encoding="utf-8"))
HARDWARE = {row["name"]: _read(**row) for row in _ROWS}


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
            _("HCCL's buffers"),
            groups * 2 * buffer * _MIB,
            _(
                "2 x HCCL_BUFFSIZE ({buffer} MB) for each of {groups} communicators: CANN's document of HCCL_BUFFSIZE"
            ).format(buffer=buffer, groups=groups),
        ),
        Reserve(
            _("operators' workspace"), _WORKSPACE, _("an assumption: 1 GiB; nothing public says how much they take")
        ),
        Reserve(
            "fragmentation",
            int(peak * _FRAGMENTS),
            _("an assumption: 5 % of the tensors, with expandable segments, which verl switches on"),
        ),
    )
