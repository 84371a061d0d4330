"""The environments for verl's pins, from upstream's documents and published images.

`PINS["v0.7.1"].cells[Component.TORCH_NPU].claims` are the claims that the documents for that pin make about torch_npu.
A claim has a version, its source, and, if the claim is limited to one rollout engine, that engine. Documents can
contradict each other: all claims are kept, and the first claim determines the installed version.

The data are in the files beside this module, one for each pin. The project's scripts and pages read these files, too.
The plugin's own data about pins are in `verl_npu.pins`, which may cover more pins.
"""

from __future__ import annotations

import enum
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from verl_npu.pins import pins

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VLLM = "vllm"
SGLANG = "sglang"
A5 = "a5"

ENVIRONMENTS = ("documents", "image")
"""The names of the kinds of environments: from verl's own documentation, or from a published image."""

_LEADING = re.compile(r"\d+(?:\.\d+)*(?:[.-]?(?:rc|alpha|beta|a|b|post|dev)[.-]?\d*)?", re.IGNORECASE)


class Component(enum.Enum):
    """A component of an environment. The value is the component's name in commands, on documentation pages, and in the
    pins' files."""

    PYTHON = "python"
    CANN = "cann"
    DRIVER = "driver"
    """The driver and firmware, called HDK in upstream's documentation."""
    TORCH = "torch"
    TORCH_NPU = "torch_npu"
    TORCHVISION = "torchvision"
    VLLM = "vllm"
    VLLM_ASCEND = "vllm-ascend"
    SGLANG = "sglang"
    TRANSFORMERS = "transformers"
    TENSORDICT = "tensordict"
    NUMPY = "numpy"
    EINOPS = "einops"
    RAY = "ray"
    PEFT = "peft"
    PYARROW = "pyarrow"
    TRANSFER_QUEUE = "TransferQueue"
    MINDSPEED = "mindspeed"
    MEGATRON = "megatron-core"
    MBRIDGE = "mbridge"
    TRITON = "triton"
    TRITON_ASCEND = "triton-ascend"
    FLASH_ATTN = "flash-attn"
    LIGER_KERNEL = "liger-kernel"


@dataclass(frozen=True, slots=True)
class Source:
    """The document that contains a claim."""

    project: str
    """`verl` or `vllm-ascend`."""
    revision: str
    """A commit or a tag of the project."""
    document: str
    """The path of the file in the project."""

    def __str__(self) -> str:
        return f"{self.project} {self.revision}: {self.document}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim: the version of one component that one document requires or recommends."""

    needs: str
    """A version specifier of Python packaging. Empty if any version will do."""
    source: Source
    revision: str = ""
    """The branch, tag, or commit, for components that are installed from git."""
    engine: str = ""
    """VLLM or SGLANG if the claim applies only with that rollout engine. Empty if it always applies."""
    npu: str = ""
    """`a5` if the claim applies only to that kind of NPU. Empty if it applies to all."""
    arch: str = ""
    """`arm` or `x86` if the claim applies only to that processor architecture. Empty if it applies to both."""
    unsupported: bool = False
    """True if the document states that the component does not work on NPUs."""
    note: str = ""
    note_zh: str = ""
    """The note in Chinese."""

    def accepts(self, version: Version) -> bool:
        """Return whether the claim allows this version."""
        return not self.unsupported and SpecifierSet(self.needs).contains(version, prereleases=True)

    def __str__(self) -> str:
        if self.unsupported:
            return "not supported"
        return self.needs or self.revision or "any version"


@dataclass(frozen=True, slots=True)
class Cell:
    """All claims that an environment's documents make about one component. If the claims contradict each other, the
    first claim applies."""

    component: Component
    claims: tuple[Claim, ...]

    def about(self, engines: Iterable[str] = (), npu: str = "", arch: str = "") -> tuple[Claim, ...]:
        """Return the claims about the component's version that apply with these rollout engines, this kind of NPU, and
        this processor architecture.

        If no engine is given, the claims for vLLM apply. Claims that are limited to the given architecture replace the
        claims without such a limit.
        """
        engines = {*engines} or {VLLM}
        counting = tuple(
            claim
            for claim in self.claims
            if (not claim.engine or claim.engine in engines) and claim.npu in ("", npu) and claim.arch in ("", arch)
        )
        return tuple(claim for claim in counting if claim.arch) or counting


@dataclass(frozen=True, slots=True)
class Image:
    """A container image for one kind of NPU: the base image in a pin's Dockerfile, or a published image."""

    npu: str
    """`a2` or `a3`."""
    base: str
    """The name and tag of the base image, without the registry."""
    source: Source
    arch: str = ""
    """The processor architecture, `arm` or `x86`. Empty if one image name covers both."""
    mounts: tuple[str, ...] = ()
    """The host's folders for a job's files, as the image's documentation mounts them. Each has the same path in the
    container."""
    tools: tuple[str, ...] = ()
    """The host's tools that the image's documentation mounts read-only, besides the driver's files."""


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment for a pin, as described by documents or by a published image."""

    id: str
    """The environment's name in `verl-npu setup --for`."""
    source: str
    """The documents that describe the environment."""
    cells: Mapping[Component, Cell]
    images: tuple[Image, ...] = ()
    published: bool = False
    """True if everything is already installed in the images. False if they are the base images of verl's
    Dockerfiles."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One revision of verl."""

    name: str
    commit: str
    """The full commit. Empty if only the release on the package index is known."""
    environments: tuple[Environment, ...]
    """The environments for this pin. The first environment is the one that verl's own documentation describes."""

    @property
    def cells(self) -> Mapping[Component, Cell]:
        """The claims that verl's own documentation makes about each component."""
        return self.environments[0].cells

    @property
    def images(self) -> tuple[Image, ...]:
        """The base images of verl's own Dockerfiles."""
        return self.environments[0].images

    def name_of(self, environment: Environment) -> str:
        """Return the pin's name. The environment's name is appended unless verl's own documentation describes the
        environment."""
        return self.name if environment is self.environments[0] else f"{self.name}'s {environment.id}"


def parse_version(text: str) -> Version | None:
    """Parse a version of CANN, a driver, or a distribution, up to the part that is not a valid Python version.

    For example, `8.2.RC1.alpha003` becomes 8.2rc1. Returns None if the text has no number.
    """
    try:
        return Version(text)
    except InvalidVersion:
        found = _LEADING.match(text.strip().removeprefix("v").removeprefix("V"))
        return Version(found[0]) if found else None


def is_commit(revision: str) -> bool:
    """Return whether a revision is a commit rather than a branch or a tag."""
    return re.fullmatch(r"[0-9a-f]{7,40}", revision) is not None


class Pins(Mapping[str, Pin]):
    """The pins in a folder, oldest first. A pin's file is read when the pin is first used."""

    def __init__(self, folder: Path, locks: Path | None = None) -> None:
        self._known = pins(locks)
        self._files = {name: folder / f"{name}.toml" for name in self._known if (folder / f"{name}.toml").is_file()}
        self._read: dict[str, Pin] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, name: str) -> Pin:
        if name not in self._read:
            environments = (self._environment(name, each) for each in self.said(name)["environment"])
            self._read[name] = Pin(name, self._known[name].commit, tuple(environments))
        return self._read[name]

    def said(self, name: str) -> Mapping[str, Any]:
        """Return the raw contents of a pin's file. Raises KeyError if the pin has no file."""
        return _content(self._files[name])

    def _environment(self, name: str, own: Mapping[str, Any]) -> Environment:
        said = self._description(own, own.get("like", name))
        revision = own.get("revision", name)
        documents = said["documents"]
        cells = {}
        for part, claims in said["versions"].items():
            component = Component(part)
            made = (_claim(each, documents[each["document"]], revision) for each in claims)
            cells[component] = Cell(component, tuple(made))
        published = said.get("published", False)
        project = "image" if published else "verl"
        images = (_image(each, project, revision) for each in said.get("images", ()))
        return Environment(own["id"], said["source"], MappingProxyType(cells), tuple(images), published)

    def _description(self, own: Mapping[str, Any], pin: str) -> Mapping[str, Any]:
        """Return the description of an environment in the file of `pin`. If the description refers to the file of
        another pin, that file is read."""
        return next(each for each in self.said(pin)["environment"] if each["id"] == own["id"])


@functools.cache
def _content(path: Path) -> Mapping[str, Any]:
    content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return content


def _image(said: Mapping[str, Any], project: str, revision: str) -> Image:
    return Image(
        npu=said["npu"],
        base=said["base"],
        source=Source(project, said.get("revision", revision), said["document"]),
        arch=said.get("arch", ""),
        mounts=tuple(said.get("mounts", ())),
        tools=tuple(said.get("tools", ())),
    )


def _claim(said: Mapping[str, Any], document: Mapping[str, str], revision: str) -> Claim:
    return Claim(
        needs=said.get("needs", ""),
        source=Source(document.get("project", "verl"), document.get("revision", revision), document["path"]),
        revision=said.get("revision", ""),
        engine=document.get("engine", ""),
        npu=document.get("npu", ""),
        arch=said.get("arch", ""),
        unsupported=said.get("unsupported", False),
        note=said.get("note", ""),
        note_zh=said.get("note_zh", ""),
    )


PINS = Pins(Path(__file__).parent)
"""All pins that have a file, oldest first."""
