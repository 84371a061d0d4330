"""Settings for weight syncs, which come from environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ... import environment

WAIT_LONGER = f"{environment.WEIGHT_SYNC_TIMEOUT.name}=SECONDS"
"""The setting that the errors about timeouts name."""


class Check(str, Enum):
    """The additional comparison that a sync runs after names, shapes, and dtypes match."""

    NONE = "none"
    CHECKSUMS = "checksums"
    """Each bucket carries a checksum, which is compared before the bucket is loaded."""
    ENGINE = "engine"
    """Checksums as above. In addition, the engine's weights are compared bit for bit after each sync."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of weight syncs. In a group, all ranks use the bucket size and the check of rank 0."""

    bucket_bytes: int = 16 << 20
    """The size of a bucket in bytes. Each rank that moves weights holds two buckets."""
    check: Check = Check.NONE
    timeout: float = 600.0
    """How many seconds a rank waits for the others. Then it raises an error that names the missing rank."""
    port: int = 0
    """The port of the group's store. 0 means any free port."""

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the variables VERL_NPU_WEIGHT_SYNC_*. Raises SettingError for an invalid value."""
        return cls(
            bucket_bytes=int(environment.WEIGHT_SYNC_BUCKET_MB.read() * (1 << 20)),
            check=Check(environment.WEIGHT_SYNC_CHECK.read()),
            timeout=environment.WEIGHT_SYNC_TIMEOUT.read(),
            port=int(environment.WEIGHT_SYNC_PORT.read()),
        )
