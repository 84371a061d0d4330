"""Manifests of a job's processes, each told by its process and read by the one that is about to train."""

from __future__ import annotations

from collections.abc import Callable

from ... import process, reporting
from ...manifest import manifest
from . import process_group, ray_job
from .reading import Reading

__all__ = ["publish", "published"]


def publish() -> None:
    """Put the manifest of this process where the others of its job find it, if it has others. Raises nothing."""
    if process.is_ray_worker():
        _guarded(lambda: ray_job.put(manifest()))
    elif process_group.joined():
        _guarded(lambda: process_group.put(manifest()))


def published() -> Reading:
    """Return the manifests of this job's processes, this one's among them. Raises nothing."""
    own = manifest()
    try:
        if ray_job.running():
            reading = ray_job.read()
        elif process_group.running():
            reading = process_group.read()
        else:
            reading = Reading()
    except Exception as error:
        # Whatever it is, it is no reason of ours to end a job that does not ask for strict.
        reading = Reading(unreadable=f"{type(error).__name__}: {error}")
    return reading.including(own)


def _guarded(put: Callable[[], None]) -> None:
    try:
        put()
    except Exception as error:
        # It comes from an import or from upstream's own code, which it must not end: the comparison says that the
        # manifest of this process is missing.
        reporting.warn(
            f"the manifest of this process could not be told to the others: {type(error).__name__}: {error}"
        )
