"""The settings of weight syncs, from the environment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ... import environment

WAIT_LONGER = f"{environment.WEIGHT_SYNC_TIMEOUT.name}=SECONDS"
"""The override in the errors of ranks that waited in vain."""


class Check(str, Enum):
    """What is compared beyond names, shapes and dtypes."""

    NONE = "none"
    CHECKSUMS = "checksums"
    """Every bucket carries a checksum, which is compared before the bucket is loaded."""
    ENGINE = "engine"
    """As checksums; and after each sync what the engine computes with is compared bit for bit."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How weights are moved. The bucket size and the check of rank 0 hold for all ranks of a group."""

    bucket_bytes: int = 16 << 20
    """Bytes of one bucket; each rank that moves weights keeps two."""
    check: Check = Check.NONE
    timeout: float = 600.0
    """Seconds that a rank waits for the others before it names the one that is missing."""
    port: int = 0
    """Port of the group's store; 0 is any free port."""

    @classmethod
    def from_environment(cls) -> Settings:
        """Read VERL_NPU_WEIGHT_SYNC_*. Raises SettingError for a wrong value."""
        return cls(
            bucket_bytes=int(environment.WEIGHT_SYNC_BUCKET_MB.read() * (1 << 20)),
            check=Check(environment.WEIGHT_SYNC_CHECK.read()),
            timeout=environment.WEIGHT_SYNC_TIMEOUT.read(),
            port=int(environment.WEIGHT_SYNC_PORT.read()),
        )
