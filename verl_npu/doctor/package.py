"""The Python packages of an environment, from their metadata: nothing is imported."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

__all__ = ["Package", "installed_packages"]

_MEGATRON = ("MAJOR", "MINOR", "PATCH")


@dataclass(frozen=True, slots=True)
class Package:
    """One package."""

    name: str
    version: str
    folder: Path
    """Where its modules are."""
    requires: tuple[str, ...] = ()
    commit: str = ""
    """The git commit that it was installed from; empty if that is not known."""
    branch: str = ""
    """The branch or tag that was asked for, or that is checked out now."""

    @property
    def parsed(self) -> Version | None:
        """The version; None if it is none of Python packaging's, or says nothing, as that of a shallow clone does."""
        try:
            version = Version(self.version)
        except InvalidVersion:
            return None
        return None if (version.major, version.minor) == (0, 1) and version.is_devrelease else version

    def requirement(self, name: str) -> Requirement | None:
        """Return what it asks of another package, if it does without a condition."""
        for text in self.requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if requirement.marker is None and canonicalize_name(requirement.name) == canonicalize_name(name):
                return requirement
        return None

    def __str__(self) -> str:
        where = f" at {self.commit[:8]}" if self.commit else f" at {self.branch}" if self.branch else ""
        return f"{self.version}{where}"


def installed_packages(path: Sequence[str]) -> dict[str, Package]:
    """Return the packages that are found on `path`, by canonical name; the first of a name counts, as for Python."""
    found: dict[str, Package] = {}
    for each in metadata.distributions(path=list(path)):
        name = each.metadata["Name"]
        if name and each.version and canonicalize_name(name) not in found:
            found[canonicalize_name(name)] = _package(name, each)
    if "megatron-core" not in found:
        checkouts = (each for each in map(_megatron, map(Path, path)) if each is not None)
        found.update((each.name, each) for each in itertools.islice(checkouts, 1))
    return found


def _package(name: str, distribution: metadata.Distribution) -> Package:
    folder = Path(str(distribution.locate_file("")))
    commit, branch = "", ""
    content = _json(distribution.read_text("direct_url.json"))
    vcs = content.get("vcs_info")
    if isinstance(vcs, dict):
        commit, branch = str(vcs.get("commit_id", "")), str(vcs.get("requested_revision", ""))
    url = urlsplit(str(content.get("url", "")))
    if url.scheme == "file":
        checkout = Path(unquote(url.path))
        commit, branch = _head(checkout)
        folder = checkout if checkout.is_dir() else folder
    return Package(name, distribution.version, folder, tuple(distribution.requires or ()), commit, branch)


def _json(text: str | None) -> dict[str, object]:
    try:
        content = json.loads(text or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _head(checkout: Path) -> tuple[str, str]:
    """Return the commit and the branch of a checkout, as far as its files say; git itself need not be there."""
    try:
        head = (checkout / ".git" / "HEAD").read_text().strip()
    except OSError:
        return "", ""
    if not head.startswith("ref: "):
        return (head, "") if re.fullmatch(r"[0-9a-f]{40}", head) else ("", "")
    reference = head.removeprefix("ref: ")
    try:
        commit = (checkout / ".git" / reference).read_text().strip()
    except OSError:
        commit = ""
    return commit, reference.removeprefix("refs/heads/")


def _megatron(entry: Path) -> Package | None:
    """Return the Megatron of a checkout that is on PYTHONPATH: it has no metadata."""
    try:
        text = (entry / "megatron" / "core" / "package_info.py").read_text()
    except (OSError, ValueError):
        return None
    numbers = [re.search(rf"(?m)^{name}\s*=\s*(\d+)", text) for name in _MEGATRON]
    if not all(numbers):
        return None
    commit, branch = _head(entry)
    version = ".".join(number[1] for number in numbers if number is not None)
    return Package("megatron-core", version, entry, (), commit, branch)
