"""What one document says about one part, and what all documents of a pin say about it together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from .component import Component

__all__ = ["A5", "SGLANG", "VLLM", "Cell", "Claim", "Image", "Pin", "Source", "parse_version"]

VLLM = "vllm"
SGLANG = "sglang"
A5 = "a5"

_LEADING = re.compile(r"\d+(?:\.\d+)*(?:[.-]?(?:rc|alpha|beta|a|b|post|dev)[.-]?\d*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a claim can be read."""

    project: str
    """`verl` or `vllm-ascend`."""
    revision: str
    """A commit or a tag of it."""
    document: str
    """The path of the file in it."""

    def __str__(self) -> str:
        return f"{self.project} {self.revision}: {self.document}"


@dataclass(frozen=True, slots=True)
class Claim:
    """What one document says. `needs` is a version specifier of Python packaging; empty means any version."""

    needs: str
    source: Source
    revision: str = ""
    """The branch, tag or commit to install from, for parts that are installed from git."""
    engine: str = ""
    """VLLM or SGLANG if the document is about environments with that rollout engine only."""
    npu: str = ""
    """`a5` if the document is about that kind of NPU only."""
    unsupported: bool = False
    """Whether the document says that the part does not work on NPUs."""
    note: str = ""

    def accepts(self, version: Version) -> bool:
        """Whether the document allows this version."""
        return not self.unsupported and SpecifierSet(self.needs).contains(version, prereleases=True)

    def __str__(self) -> str:
        if self.unsupported:
            return "not supported"
        return self.needs or self.revision or "any version"


@dataclass(frozen=True, slots=True)
class Cell:
    """What the documents of one pin say about one part; where they contradict each other, the first is to install."""

    component: Component
    claims: tuple[Claim, ...]

    def about(self, engines: Iterable[str] = (), npu: str = "") -> tuple[Claim, ...]:
        """Return the claims that count with these rollout engines and this kind of NPU; without an engine, vLLM's."""
        engines = {*engines} or {VLLM}
        return tuple(
            claim
            for claim in self.claims
            if (not claim.engine or claim.engine in engines) and (not claim.npu or claim.npu == npu)
        )


@dataclass(frozen=True, slots=True)
class Image:
    """The base image and the Dockerfile that a pin has for one kind of NPU."""

    npu: str
    """`a2` or `a3`."""
    base: str
    """Name and tag of the base image, without the registry."""
    source: Source


@dataclass(frozen=True, slots=True)
class Pin:
    """What one revision of verl needs on NPUs."""

    name: str
    commit: str
    """Empty if only the release on the package index is known."""
    cells: Mapping[Component, Cell]
    images: tuple[Image, ...] = ()


def parse_version(text: str) -> Version | None:
    """Return a version as CANN, drivers and distributions write them; of what cannot be compared, the part in front.

    `8.2.RC1.alpha003` is read as 8.2rc1, because its end has no meaning to Python. None if there is no number.
    """
    try:
        return Version(text)
    except InvalidVersion:
        found = _LEADING.match(text.strip().removeprefix("v").removeprefix("V"))
        return Version(found[0]) if found else None
