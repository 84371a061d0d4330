"""The settings of weight syncs, from the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum

from .errors import WeightSyncError

__all__ = ["NAMES", "Check", "Settings"]

_PREFIX = "VERL_NPU_WEIGHT_SYNC_"
NAMES = tuple(_PREFIX + name for name in ("BUCKET_MB", "CHECK", "PORT", "TIMEOUT"))


class Check(str, Enum):
    """What is compared beyond names, shapes and dtypes."""

    NONE = "none"
    CHECKSUMS = "checksums"
    """Every bucket carries a checksum, which is compared before the bucket is loaded."""
    ENGINE = "engine"
    """And after each sync the engine's parameters are read back and compared bit for bit: slow, to find faults."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How weights are moved. The source's bucket size and check hold for all ranks of a group."""

    bucket_bytes: int = 16 << 20
    """Bytes of one bucket; each rank that moves weights keeps two."""
    check: Check = Check.NONE
    timeout: float = 600.0
    """Seconds that a rank waits for the others before it names the one that is missing."""
    port: int = 0
    """Port of the group's store; 0 is a free one."""

    @classmethod
    def from_environment(cls) -> Settings:
        """Read VERL_NPU_WEIGHT_SYNC_*; raises WeightSyncError for a value that is none."""
        default = cls()
        check = os.environ.get(_PREFIX + "CHECK", default.check.value)
        if check not in [known.value for known in Check]:
            expected = ", ".join(known.value for known in Check)
            raise WeightSyncError(f"{_PREFIX}CHECK={check!r}: expected one of {expected}; correct it or leave it out")
        return cls(
            bucket_bytes=int(_number("BUCKET_MB", default.bucket_bytes / (1 << 20), 1 << 20) * (1 << 20)),
            check=Check(check),
            timeout=_number("TIMEOUT", default.timeout, 1 << 20),
            port=int(_number("PORT", default.port, 65535, least=0)),
        )


def _number(name: str, default: float, most: float, least: float = 1e-6) -> float:
    text = os.environ.get(_PREFIX + name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= most:
        raise WeightSyncError(
            f"{_PREFIX}{name}={text!r}: expected a number from {least:g} to {most:g}; correct it or leave it out"
        )
    return value
