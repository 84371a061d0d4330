"""The public names of the torch_npu version that virtual-ascend emulates.

scripts/record_names.py creates names.json from the wheels.
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
    """Return the release that a version belongs to. Release candidates and builds are treated as the release, but
    post-releases are not."""
    read = Version(version)
    return Version(read.base_version if read.post is None else f"{read.base_version}.post{read.post}")


def outside(module: str, version: str) -> list[str]:
    """Return the recorded names that a module contains in other versions of torch_npu, but not in this version."""
    return sorted(_recorded().get(module, {}).keys() - set(of_module(module, version)))


def of_module(module: str, version: str) -> list[str]:
    """Return the names that a module contains in a version of torch_npu. If the version is older than all recorded
    versions, return the names in the oldest recorded version."""
    # The versions in which a name appeared, disappeared, appeared again ...
    changes = {name: [Version(v) for v in text.split()] for name, text in _recorded().get(module, {}).items()}
    oldest = min((versions[0] for versions in changes.values()), default=Version("0"))
    wanted = max(release(version), oldest)
    return [name for name, versions in changes.items() if sum(version <= wanted for version in versions) % 2]
