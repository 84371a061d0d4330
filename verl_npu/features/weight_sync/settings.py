"""Settings of weight syncs, read from the environment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ... import environment

WAIT_LONGER = f"{environment.WEIGHT_SYNC_TIMEOUT.name}=SECONDS"
"""The override that timeout errors name."""


class Check(str, Enum):
    """The comparisons made after names, shapes, and dtypes agree."""

    NONE = "none"
    CHECKSUMS = "checksums"
    """Every bucket carries a checksum, which is compared before the bucket is loaded."""
    ENGINE = "engine"
    """As with CHECKSUMS. In addition, after each sync the engine's weights are compared bit for bit."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of weight syncs. Rank 0's bucket size and check apply to all ranks of a group."""

    bucket_bytes: int = 16 << 20
    """Bytes of one bucket. Each rank that moves weights keeps two."""
    check: Check = Check.NONE
    timeout: float = 600.0
    """Seconds that a rank waits for the others before it names the missing rank."""
    port: int = 0
    """Port of the group's store; 0 means any free port."""

    @classmethod
    def from_environment(cls) -> Settings:
        """Read VERL_NPU_WEIGHT_SYNC_*. Raises SettingError for an invalid value."""
        return cls(
            bucket_bytes=int(environment.WEIGHT_SYNC_BUCKET_MB.read() * (1 << 20)),
            check=Check(environment.WEIGHT_SYNC_CHECK.read()),
            timeout=environment.WEIGHT_SYNC_TIMEOUT.read(),
            port=int(environment.WEIGHT_SYNC_PORT.read()),
        )
