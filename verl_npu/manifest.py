"""Manifests: JSON records of what verl-npu did in each process."""

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
"""The maximum size of a manifest in bytes. It is ten times the size of a manifest with every patch."""


class Activity(RegistryActivity):
    """Everything that verl-npu has done in a process."""

    version: str
    active: bool
    origin: str
    """The entry point that activated verl-npu, or the import that did."""
    simulated: bool
    """Whether the NPUs are virtual."""
    role: str
    """The role of the process: `driver`, or the class of the Ray actor in it."""


def why_off(wanted: Callable[[], bool]) -> str:
    """Return the reason why verl-npu is off in this process. `wanted` is a function that returns whether verl-npu
    should be on."""
    try:
        is_wanted = wanted()
    except Exception as error:
        return str(error)
    if is_wanted:
        return "it was deactivated, or torch_npu cannot be imported; run `verl-npu status` for details"
    if environment.SWITCH.read() == "off":
        return f"{environment.SWITCH.name} is off"
    return "torch_npu is not installed, and VIRTUAL_ASCEND asks for no virtual NPU"


class Shown(dict[str, object]):
    """An activity (a description of what verl-npu did in a process) with a short repr. A repr with every patch of
    every feature would have 30,000 characters."""

    def __init__(self, activity: Activity, why_off: str) -> None:
        super().__init__(activity)
        self.why_off = why_off
        """The reason why verl-npu is off in this process. Empty if it is on."""

    def __repr__(self) -> str:
        features = cast("dict[str, dict[str, object]]", self["features"])
        if self.why_off:
            return f"<verl-npu {self['version']} is off: {self.why_off}>"
        states = ", ".join(f"{name} {feature['state']}" for name, feature in features.items())
        simulated = " on virtual NPUs" if self["simulated"] else ""
        return (
            f"<verl-npu {self['version']} is on{simulated}, by {self['origin']}: "
            f"{states or 'verl is not imported yet'}; read its keys for details>"
        )


class Manifest(Activity):
    """A record of what verl-npu has done in a process, with the identity of the process."""

    host: str
    pid: int
    token: str
    """A text that differs between processes which have the same host name and process id in different containers."""


_activities: list[Callable[[], Activity]] = []


def set_activity_source(source: Callable[[], Activity]) -> None:
    """Set the function that `manifest` calls to get the activity of this process.

    Features need the manifest of their process, but must not import the module that tracks the activity, because that
    module is in a higher layer.
    """
    _activities[:] = [source]


def manifest() -> Manifest:
    """Return the manifest of this process. Raises LookupError if nothing was activated in this process."""
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
    """Return the name of a feature. If the feature comes from a distribution other than verl-npu, add the name of that
    distribution."""
    entries = (manifest["features"][feature] for manifest in manifests if feature in manifest["features"])
    owner = next(filter(None, (entry["owner"] for entry in entries)), "")
    return f"{feature} of {owner}" if owner else feature


def write_manifest(folder: Path, content: Manifest) -> Path:
    """Write a manifest into `folder` atomically, and return its path. The new manifest replaces an earlier manifest of
    the same process."""
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
    """Return all manifests in `folder`, sorted by file name. For each JSON file that is not a manifest, return an
    error."""
    found, unread = [], []
    for path in sorted(folder.glob("[!.]*.json")):
        try:
            found.append(_read(path))
        except SourceError as error:
            unread.append(error)
    return found, unread


def encoded(content: Manifest) -> bytes:
    """Return a manifest as JSON. Other processes read it in this form."""
    return json.dumps({"schema": SCHEMA, **content}).encode()


def packed(content: Manifest) -> str:
    """Return a manifest as the value of an environment variable. The value is compressed, because Ray and upstream
    print environment variables in one line of the log."""
    return base64.b64encode(zlib.compress(encoded(content), 9)).decode()


def unpacked(text: str) -> bytes:
    """Undo `packed`. Text that is not packed is returned unchanged, so that `decoded` rejects it."""
    try:
        return zlib.decompressobj().decompress(base64.b64decode(text, validate=True), _LARGEST + 1)
    except (ValueError, zlib.error):
        return text.encode()


def decoded(data: bytes, subject: str) -> Manifest:
    """Decode a manifest that another process sent. The data is untrusted. Raises SourceError if the data is not a
    manifest."""
    if len(data) > _LARGEST:
        raise _no_manifest(subject, f"more than {_LARGEST >> 20} MiB")
    try:
        content = json.loads(data.decode())
    # RecursionError: the JSON is nested too deeply.
    except (ValueError, RecursionError) as error:
        raise _no_manifest(subject, f"text that is not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = f"schema {content.get('schema')!r}" if isinstance(content, dict) else "JSON that is not an object"
        raise _no_manifest(subject, found[:200])
    wrong = sorted(_wrong(content, Manifest))
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise _no_manifest(subject, f"keys that are missing or have the wrong type: {', '.join(wrong[:3])}{more}")
    return cast(Manifest, content)


def _read(path: Path) -> Manifest:
    # The folder may hold anything under such a name: a pipe would never end, and a huge file would fill the memory.
    if not path.is_file():
        raise _no_manifest(str(path), "something other than a regular file")
    try:
        with path.open("rb") as stream:
            data = stream.read(_LARGEST + 1)
    except OSError as error:
        raise _no_manifest(str(path), error.strerror or str(error)) from error
    return decoded(data, str(path))


def _wrong(content: object, declared: type, where: str = "") -> Iterator[str]:
    """Yield the keys of a manifest that are missing or whose values do not have the declared type."""
    given = content if isinstance(content, dict) else {}
    for name, hint in _hints(declared).items():
        value, kind, inside = given.get(name), get_origin(hint) or hint, get_args(hint)
        # JSON does not distinguish integers from floats.
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
        fix="give the folder of the job's manifests (for a rehearsal, the subfolder `manifests` of its output). If "
        "this file is damaged, run the job again",
    )
