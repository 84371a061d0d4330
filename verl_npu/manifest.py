"""Manifests: what one process really did, as JSON, one file for each process."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import cast, get_origin, get_type_hints

from . import process
from .errors import SourceError
from .registry.activity import FeatureEntry, NativeEntry, PatchEntry, RegistryActivity, UpstreamEntry

__all__ = [
    "Activity",
    "Manifest",
    "activity_from",
    "manifest",
    "read_manifests",
    "write_manifest",
]

SCHEMA = 3

_LARGEST = 16 << 20
"""Bytes of a manifest: a hundred times what one with every patch has."""


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
        content = json.loads(_text(path))
    # The last: JSON that is nested too deeply.
    except (OSError, ValueError, RecursionError) as error:
        raise _no_manifest(path, (isinstance(error, OSError) and error.strerror) or str(error)) from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise _no_manifest(path, "something else")
    wrong = sorted(_wrong(content))
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise _no_manifest(path, f"none or another kind of {', '.join(wrong[:3])}{more}")
    return cast(Manifest, content)


def _text(path: Path) -> str:
    # Whatever lies in the folder under such a name: a pipe would never end, and a huge file would fill the memory.
    if not path.is_file():
        raise ValueError("no ordinary file")
    with path.open("rb") as stream:
        data = stream.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError(f"more than {_LARGEST >> 20} MiB")
    return data.decode()


def _wrong(content: Mapping[str, object]) -> list[str]:
    """Name the parts of a manifest that are missing or of another kind."""
    wrong = _unlike(content, Manifest)
    features, upstreams, natives = (content.get(name) for name in ("features", "upstreams", "natives"))
    tainted = content.get("tainted")
    if isinstance(features, dict):
        for name, feature in features.items():
            wrong += [f"features.{name}.{part}" for part in _wrong_feature(feature)]
    if isinstance(upstreams, dict):
        for name, upstream in upstreams.items():
            wrong += [f"upstreams.{name}.{part}" for part in _unlike(upstream, UpstreamEntry)]
    if isinstance(natives, dict):
        for target, native in natives.items():
            wrong += [f"natives.{target}.{part}" for part in _unlike(native, NativeEntry)]
    if isinstance(tainted, list) and not all(isinstance(name, str) for name in tainted):
        wrong.append("tainted")
    return wrong


def _wrong_feature(feature: object) -> list[str]:
    wrong = _unlike(feature, FeatureEntry)
    patches = feature.get("patches") if isinstance(feature, dict) else None
    if isinstance(patches, dict):
        for patch_id, patch in patches.items():
            wrong += [f"patches.{patch_id}.{part}" for part in _unlike(patch, PatchEntry)]
    return wrong


def _unlike(content: object, declared: type) -> list[str]:
    given = content if isinstance(content, dict) else {}
    return [name for name, kind in _kinds(declared).items() if not isinstance(given.get(name), kind)]


@cache
def _kinds(declared: type) -> Mapping[str, type | tuple[type, ...]]:
    hints = {name: get_origin(hint) or hint for name, hint in get_type_hints(declared).items()}
    # JSON has one kind of number.
    return {name: (int, float) if hint is float else hint for name, hint in hints.items()}


def _no_manifest(path: Path, found: str) -> SourceError:
    return SourceError(
        subject=str(path),
        expected=f"a manifest of schema {SCHEMA}",
        found=found,
        fix="give the folder that the job wrote its manifests to, or delete this file and run the job again",
    )
