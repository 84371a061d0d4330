"""Manifests: what one process really did, as JSON, one file for each process."""

from __future__ import annotations

import base64
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import cast, get_args, get_origin, get_type_hints

from . import environment, process
from .errors import SourceError
from .registry.state import RegistryActivity

SCHEMA = 4

_LARGEST = 2 << 20
"""Bytes of a manifest: ten times what one with every patch has."""


class Activity(RegistryActivity):
    """What verl-npu did in a process."""

    version: str
    active: bool
    origin: str
    """What activated it: an entry point, or an import of the package."""
    simulated: bool
    """Whether its NPUs are virtual ones."""
    role: str
    """Driver, or the class of the Ray actor that the process is."""


def why_off(wanted: Callable[[], bool]) -> str:
    """Say why verl-npu is off in this process; `wanted` asks whether it is to be on."""
    try:
        is_wanted = wanted()
    except Exception as error:
        return str(error)
    if is_wanted:
        return "it was deactivated, or torch_npu cannot be imported; `verl-npu status` says more"
    if environment.SWITCH.read() == "off":
        return f"{environment.SWITCH.name} is off"
    return "there is no torch_npu here, and VIRTUAL_ASCEND asks for no virtual NPU"


class Shown(dict[str, object]):
    """An activity that a person can read: each patch of each feature is 30,000 characters."""

    def __init__(self, activity: Activity, why_off: str) -> None:
        super().__init__(activity)
        self.why_off = why_off
        """Why verl-npu is off in this process; empty if it is on."""

    def __repr__(self) -> str:
        features = cast("dict[str, dict[str, object]]", self["features"])
        if self.why_off:
            return f"<verl-npu {self['version']} is off: {self.why_off}>"
        states = ", ".join(f"{name} {feature['state']}" for name, feature in features.items())
        simulated = " on virtual NPUs" if self["simulated"] else ""
        return (
            f"<verl-npu {self['version']} is on{simulated}, by {self['origin']}: "
            f"{states or 'verl is not imported yet'}; by key it has more>"
        )


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


def titled(feature: str, manifests: Sequence[Manifest]) -> str:
    """Return the name of a feature, with the distribution that brings it where that is not verl-npu."""
    entries = (manifest["features"][feature] for manifest in manifests if feature in manifest["features"])
    owner = next(filter(None, (entry["owner"] for entry in entries)), "")
    return f"{feature} of {owner}" if owner else feature


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


def read_manifests(folder: Path) -> tuple[list[Manifest], list[SourceError]]:
    """Return all manifests in `folder`, by file name, and an error for each file that should be one and is none."""
    found, unread = [], []
    for path in sorted(folder.glob("[!.]*.json")):
        try:
            found.append(_read(path))
        except SourceError as error:
            unread.append(error)
    return found, unread


def encoded(content: Manifest) -> bytes:
    """Return a manifest as other processes are told it."""
    return json.dumps({"schema": SCHEMA, **content}).encode()


def packed(content: Manifest) -> str:
    """Return a manifest as an environment variable has it: the logs of Ray and upstream show those in one line."""
    return base64.b64encode(zlib.compress(encoded(content), 9)).decode()


def unpacked(text: str) -> bytes:
    """Return what `decoded` reads. What nobody packed stays as it is, and is refused there."""
    try:
        return zlib.decompressobj().decompress(base64.b64decode(text, validate=True), _LARGEST + 1)
    except (ValueError, zlib.error):
        return text.encode()


def decoded(data: bytes, subject: str) -> Manifest:
    """Return the manifest that a process was told, which may be a stranger's. Raises SourceError if it is none."""
    if len(data) > _LARGEST:
        raise _no_manifest(subject, f"more than {_LARGEST >> 20} MiB")
    try:
        content = json.loads(data.decode())
    # The last: JSON that is nested too deeply.
    except (ValueError, RecursionError) as error:
        raise _no_manifest(subject, f"no JSON ({error})") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = f"schema {content.get('schema')!r}" if isinstance(content, dict) else "JSON that is no object"
        raise _no_manifest(subject, found[:200])
    wrong = sorted(_wrong(content, Manifest))
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise _no_manifest(subject, f"parts that are missing or of another kind: {', '.join(wrong[:3])}{more}")
    return cast(Manifest, content)


def _read(path: Path) -> Manifest:
    # Whatever lies in the folder under such a name: a pipe would never end, and a huge file would fill the memory.
    if not path.is_file():
        raise _no_manifest(str(path), "no ordinary file")
    try:
        with path.open("rb") as stream:
            data = stream.read(_LARGEST + 1)
    except OSError as error:
        raise _no_manifest(str(path), error.strerror or str(error)) from error
    return decoded(data, str(path))


def _wrong(content: object, declared: type, where: str = "") -> Iterator[str]:
    """Name the parts of a manifest that are missing or of another kind than is declared."""
    given = content if isinstance(content, dict) else {}
    for name, hint in _hints(declared).items():
        value, kind, inside = given.get(name), get_origin(hint) or hint, get_args(hint)
        # JSON has one kind of number.
        if not isinstance(value, (int, float) if kind is float else kind):
            yield f"{where}{name}"
        elif isinstance(value, dict):
            for key, entry in value.items():
                yield from _wrong(entry, inside[1], f"{where}{name}.{key}.")
        elif isinstance(value, list) and not all(isinstance(item, inside[0]) for item in value):
            yield f"{where}{name}"


_hints = cache(get_type_hints)


def _no_manifest(subject: str, found: str) -> SourceError:
    return SourceError(
        subject=subject,
        expected=f"a manifest of schema {SCHEMA}",
        found=found,
        fix="give the folder that the job wrote its manifests to, which is `manifests` in that of a rehearsal; run "
        "the job again if this one is damaged",
    )
