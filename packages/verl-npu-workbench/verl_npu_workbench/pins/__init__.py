"""What environments are named or published for the pins of verl: which versions, in which documents, which images.

Read it as `PINS["v0.7.1"].cells[Component.TORCH_NPU].claims`: each claim has what it needs, where that is written, and
whether it counts with vLLM or with SGLang only. Documents contradict each other; all that they say is here, and the
first claim is the one to install.

The files beside this module say it, one for each pin. What the plugin has to know of pins, perhaps of more than these,
is in `verl_npu.pins`. The scripts and pages of the project read the same files.
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
"""What environments are called: that of verl's own documents, and that of an image which is published."""

_LEADING = re.compile(r"\d+(?:\.\d+)*(?:[.-]?(?:rc|alpha|beta|a|b|post|dev)[.-]?\d*)?", re.IGNORECASE)


class Component(enum.Enum):
    """One part of an environment. Its value is the name by which commands, pages and the pins' files call it."""

    PYTHON = "python"
    CANN = "cann"
    DRIVER = "driver"
    """Driver and firmware, which upstream's documents call HDK."""
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
    """What one document says of one part."""

    needs: str
    """A version specifier of Python packaging; empty means any version."""
    source: Source
    revision: str = ""
    """The branch, tag or commit to install from, for parts that are installed from git."""
    engine: str = ""
    """VLLM or SGLANG if the document is about environments with that rollout engine only."""
    npu: str = ""
    """`a5` if the document is about that kind of NPU only."""
    arch: str = ""
    """`arm` or `x86` if the document says it of that kind of processor only."""
    unsupported: bool = False
    """Whether the document says that the part does not work on NPUs."""
    note: str = ""
    note_zh: str = ""
    """The note in Chinese."""

    def accepts(self, version: Version) -> bool:
        """Whether the document allows this version."""
        return not self.unsupported and SpecifierSet(self.needs).contains(version, prereleases=True)

    def __str__(self) -> str:
        if self.unsupported:
            return "not supported"
        return self.needs or self.revision or "any version"


@dataclass(frozen=True, slots=True)
class Cell:
    """What the documents of an environment say of one part; where they contradict each other, the first counts."""

    component: Component
    claims: tuple[Claim, ...]

    def about(self, engines: Iterable[str] = (), npu: str = "", arch: str = "") -> tuple[Claim, ...]:
        """Return the claims that count with these rollout engines, this kind of NPU and of processor.

        Without an engine vLLM's count. What is said of this kind of processor alone replaces what is said of all.
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
    """The base image of a pin's Dockerfile, or the image that is published, for one kind of NPU."""

    npu: str
    """`a2` or `a3`."""
    base: str
    """Name and tag of the base image, without the registry."""
    source: Source
    arch: str = ""
    """`arm` or `x86`; empty if one name stands for both."""
    mounts: tuple[str, ...] = ()
    """The folders of the host that its document mounts, each at its own path, for a job's own files."""
    tools: tuple[str, ...] = ()
    """What it mounts of the host's tools beside the driver's own files, to be read only."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What somebody has named, or published, as an environment for a pin."""

    id: str
    """How `verl-npu setup --for` calls it."""
    source: str
    """Who says so."""
    cells: Mapping[Component, Cell]
    images: tuple[Image, ...] = ()
    published: bool = False
    """Whether the images have all of it installed; else they are what verl's Dockerfiles are made from."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One revision of verl."""

    name: str
    commit: str
    """Empty if only the release on the package index is known."""
    environments: tuple[Environment, ...]
    """The first is what verl's own documents say."""

    @property
    def cells(self) -> Mapping[Component, Cell]:
        """What verl's own documents say of each part."""
        return self.environments[0].cells

    @property
    def images(self) -> tuple[Image, ...]:
        """What verl's own Dockerfiles are made from."""
        return self.environments[0].images

    def name_of(self, environment: Environment) -> str:
        """Return the pin's name, with that of the environment if it is not what verl's own documents say."""
        return self.name if environment is self.environments[0] else f"{self.name}'s {environment.id}"


def parse_version(text: str) -> Version | None:
    """Return a version as CANN, drivers and distributions write them; of what cannot be compared, the part in front.

    `8.2.RC1.alpha003` is read as 8.2rc1, because its end has no meaning to Python. None if there is no number.
    """
    try:
        return Version(text)
    except InvalidVersion:
        found = _LEADING.match(text.strip().removeprefix("v").removeprefix("V"))
        return Version(found[0]) if found else None


def is_commit(revision: str) -> bool:
    """Whether a revision is a commit's, and no branch or tag."""
    return re.fullmatch(r"[0-9a-f]{7,40}", revision) is not None


class Pins(Mapping[str, Pin]):
    """The pins of which a folder has a file, oldest first. A file is read when its pin is asked for."""

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
        """Return what a pin's file says, as it stands. Raises KeyError if there is none."""
        return _content(self._files[name])

    def _environment(self, name: str, own: Mapping[str, Any]) -> Environment:
        said = self._alike(own, own.get("like", name))
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

    def _alike(self, own: Mapping[str, Any], pin: str) -> Mapping[str, Any]:
        """Return the environment of that name that a pin describes itself."""
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
"""All pins that there are files of, oldest first."""
