"""The public names of the torch_npu that the virtual Ascend pretends to be.

They are in names.json, which scripts/record_names.py makes from the wheels.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from packaging.version import Version

RECORDED = Path(__file__).with_name("names.json")


@functools.cache
def _recorded() -> dict[str, dict[str, str]]:
    return json.loads(RECORDED.read_text())  # type: ignore[no-any-return]


def release(version: str) -> Version:
    """The release that a version belongs to: a candidate or a build counts as the release itself, a patch does not."""
    read = Version(version)
    return Version(read.base_version if read.post is None else f"{read.base_version}.post{read.post}")


def outside(module: str, version: str) -> list[str]:
    """The recorded names of a module that a version does not offer, because it is older or newer than they are."""
    return sorted(_recorded().get(module, {}).keys() - set(of_module(module, version)))


def of_module(module: str, version: str) -> list[str]:
    """The names that a module offers in a version, or in the oldest recorded version if that is newer."""
    # The versions with which a name came, went, came again ...
    changes = {name: [Version(v) for v in text.split()] for name, text in _recorded().get(module, {}).items()}
    oldest = min((versions[0] for versions in changes.values()), default=Version("0"))
    wanted = max(release(version), oldest)
    return [name for name, versions in changes.items() if sum(version <= wanted for version in versions) % 2]
