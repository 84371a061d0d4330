"""What is known of the processes of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...manifest import Manifest

__all__ = ["Reading"]


@dataclass(frozen=True, slots=True)
class Reading:
    """The manifests of a job's processes, and what is known of those that told none."""

    manifests: Sequence[Manifest] = field(default=())
    missing: Sequence[str] = field(default=())
    """The processes whose manifest is not there, as a user knows them."""
    unreadable: str = ""
    """Why the manifests of the other processes could not be read; empty if they were."""

    def including(self, own: Manifest) -> Reading:
        """Return the same with the manifest of this process, which may have told it earlier, or not at all."""
        others = [manifest for manifest in self.manifests if _identity(manifest) != _identity(own)]
        return replace(self, manifests=[*others, own])


def _identity(manifest: Manifest) -> tuple[str, int, str]:
    return manifest["host"], manifest["pid"], manifest["token"]
