"""Manifests: what one process really did, as JSON, one file for each process."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from . import process
from .errors import SourceError
from .registry.activity import PatchEntry, RegistryActivity, UpstreamEntry

__all__ = [
    "Activity",
    "Manifest",
    "activity_from",
    "manifest",
    "read_manifests",
    "write_manifest",
]

SCHEMA = 2


class Activity(RegistryActivity):
    """What verl-npu did in a process."""

    version: str
    active: bool
    origin: str
    """What activated it: an entry point, an environment variable, or the line of a file."""
    simulated: bool
    """Whether its NPUs are virtual ones."""
    role: str
    """Driver, or the class of the Ray actor that the process is."""


class Manifest(Activity):
    """What verl-npu did in a process, and which process that is."""

    host: str
    pid: int
    token: str
    """What tells it from a process with the same host name and pid in another container."""


_activities: list[Callable[[], Activity]] = []


def activity_from(source: Callable[[], Activity]) -> None:
    """Let `source` say from now on what this process did.

    Features ask for the manifest of their process, and what they would have to ask for it stands above them.
    """
    _activities[:] = [source]


def manifest() -> Manifest:
    """Return the manifest of this process. Raises LookupError if nothing has been activated in it."""
    if not _activities:
        raise LookupError("verl-npu has not been activated in this process")
    identity = process.identity()
    return {
        **_activities[0](),
        "host": identity.host,
        "pid": identity.pid,
        "token": identity.token,
    }


def write_manifest(folder: Path, content: Manifest) -> Path:
    """Write a manifest into `folder`, whole or not at all, and return its path.

    A process that writes again replaces its own file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{content['host']}-{content['pid']}-{content['token']}.json"
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump({"schema": SCHEMA, **content}, stream, indent=2)
            stream.write("\n")
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def read_manifests(folder: Path) -> list[Manifest]:
    """Return all manifests in `folder`, by file name. Raises SourceError for a file that is none."""
    return [_read(path) for path in sorted(folder.glob("[!.]*.json"))]


def _read(path: Path) -> Manifest:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _no_manifest(path, str(error)) from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise _no_manifest(path, "something else")
    wrong = sorted(_wrong(content))
    if wrong:
        raise _no_manifest(path, f"none or another kind of {', '.join(wrong)}")
    return cast(Manifest, content)


def _wrong(content: Mapping[str, Any]) -> list[str]:
    wrong = [name for name in _KINDS if not isinstance(content.get(name), _KINDS[name])]
    if wrong:
        return wrong
    for name, feature in content["features"].items():
        patches = feature.get("patches") if isinstance(feature, dict) else None
        if not isinstance(patches, dict) or not isinstance(feature.get("state"), str):
            wrong.append(f"features.{name}")
        elif not all(isinstance(patch, dict) and patch.keys() >= _PATCH for patch in patches.values()):
            wrong.append(f"features.{name}.patches")
    for name, upstream in content["upstreams"].items():
        if not isinstance(upstream, dict) or not upstream.keys() >= _UPSTREAM:
            wrong.append(f"upstreams.{name}")
    return wrong


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "version": str,
    "active": bool,
    "origin": str,
    "simulated": bool,
    "upstreams": dict,
    "features": dict,
    "tainted": list,
    "seconds": (int, float),
    "host": str,
    "pid": int,
    "token": str,
    "role": str,
}
_PATCH = frozenset(PatchEntry.__annotations__)
_UPSTREAM = frozenset(UpstreamEntry.__annotations__)


def _no_manifest(path: Path, found: str) -> SourceError:
    return SourceError(
        subject=str(path),
        expected=f"a manifest of schema {SCHEMA}",
        found=found,
        fix="give the folder that the job wrote its manifests to, or delete this file and run the job again",
    )
