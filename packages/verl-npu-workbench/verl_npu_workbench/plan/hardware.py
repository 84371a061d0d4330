"""The memory and the peak speeds of NPUs, and the memory that is needed besides tensors. Each number has its
source."""

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
"""The size, in MiB, of the communication buffer for each direction if HCCL_BUFFSIZE is not set."""
_WORKSPACE = 1 << 30
_FRAGMENTS = 0.05


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and its source."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """One NPU as torch sees it. On an A3, one torch device is one of the two dies of a chip."""

    name: str
    memory: Figure
    """The bytes that torch_npu can allocate. Memory that the driver and CANN keep for themselves is not included."""
    flops: Figure
    """The peak number of bfloat16 operations per second."""
    bandwidth: Figure
    """The bandwidth of the NPU's memory in bytes per second."""
    link: Figure
    """The bandwidth to the other NPUs of a node in bytes per second."""
    network: Figure
    """The bandwidth to other nodes in bytes per second."""
    host: Figure
    """The bandwidth between the NPU and the host in bytes per second."""


def _read(name: str, **figures: Any) -> Hardware:
    return Hardware(name, **{each: Figure(**figure) for each, figure in figures.items()})


_ROWS = json.loads(Path(__file__).with_name("hardware.json").read_text(encoding="utf-8"))
HARDWARE = {row["name"]: _read(**row) for row in _ROWS}


@dataclass(frozen=True, slots=True)
class Reserve:
    """Memory that is reserved: its purpose, its size in bytes, and the source of the size."""

    name: str
    size: int
    source: str


def reserve_of(groups: int, peak: int, exports: Mapping[str, str]) -> tuple[Reserve, ...]:
    """Return the memory that a rank needs in addition to its tensors.

    Args:
        groups: the number of process groups that have communicated and that include other ranks.
        peak: bytes of the rank's tensors at their peak.
        exports: the variables that the script exports.
    """
    given = exports.get("HCCL_BUFFSIZE", "")
    buffer = int(given) if given.isdigit() else _BUFFER
    return (
        Reserve(
            _("HCCL's buffers"),
            groups * 2 * buffer * _MIB,
            _(
                "2 x HCCL_BUFFSIZE ({buffer} MB) for each of {groups} communicators: CANN's documentation of "
                "HCCL_BUFFSIZE"
            ).format(buffer=buffer, groups=groups),
        ),
        Reserve(
            _("operators' workspace"),
            _WORKSPACE,
            _("an assumption, 1 GiB, because no public source says how much memory the operators need"),
        ),
        Reserve(
            "fragmentation",
            int(peak * _FRAGMENTS),
            _("an assumption: 5 % of the tensors, because verl turns on expandable segments"),
        ),
    )
