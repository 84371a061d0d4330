"""The supported revisions of verl, and which versions verl's own documents name for them on NPUs, with the source.

Read it as `PINS["v0.7.1"].cells[Component.TORCH_NPU].claims`: each claim has what it needs, where that is written, and
whether it counts with vLLM or with SGLang only. Documents contradict each other; all that they say is here, and the
first claim is the one to install.

The files of the project's folder `pins` say it all; `scripts/maintain/pins.py` makes the JSON beside this module of
them, for Python 3.10 cannot read TOML.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

VLLM = "vllm"
SGLANG = "sglang"
A5 = "a5"

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
class MindSpeed:
    """A recorded revision of MindSpeed, and where upstream names it."""

    revision: str
    document: str
    """A file of verl's at that pin."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One supported revision of verl."""

    name: str
    commit: str
    """Empty if only the release on the package index is known."""
    engines: tuple[str, str]
    """The releases of vLLM and of vllm-ascend that verl's documents for NPUs name."""
    mindspeed: MindSpeed
    """What upstream's documents name."""
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


def pins_of(said: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Pin]:
    """Return the pins as their files say, by name, in this order."""
    return MappingProxyType({name: _pin(name, each) for name, each in said.items()})


def _pin(name: str, said: Mapping[str, Any]) -> Pin:
    return Pin(
        name=name,
        commit=said["commit"],
        engines=(said["engines"]["vllm"], said["engines"]["vllm-ascend"]),
        mindspeed=MindSpeed(**said["mindspeed"]),
        environments=tuple(_environment(each) for each in said["environment"]),
    )


def _environment(said: Mapping[str, Any]) -> Environment:
    documents = said["documents"]
    cells = {}
    for name, claims in said["versions"].items():
        component = Component(name)
        cells[component] = Cell(component, tuple(_claim(claim, documents[claim["document"]]) for claim in claims))
    images = (
        Image(
            npu=each["npu"],
            base=each["base"],
            source=Source("image" if said.get("published") else "verl", each["revision"], each["document"]),
            arch=each.get("arch", ""),
            mounts=tuple(each.get("mounts", ())),
            tools=tuple(each.get("tools", ())),
        )
        for each in said["images"]
    )
    return Environment(
        id=said["id"],
        source=said["source"],
        cells=MappingProxyType(cells),
        images=tuple(images),
        published=said.get("published", False),
    )


def _claim(said: Mapping[str, Any], document: Mapping[str, str]) -> Claim:
    return Claim(
        needs=said.get("needs", ""),
        source=Source(document["project"], document["revision"], document["path"]),
        revision=said.get("revision", ""),
        engine=document.get("engine", ""),
        npu=document.get("npu", ""),
        unsupported=said.get("unsupported", False),
        note=said.get("note", ""),
        note_zh=said.get("note_zh", ""),
    )


PINS: Mapping[str, Pin] = pins_of(json.loads(Path(__file__).with_name("pins.json").read_text(encoding="utf-8")))
"""All pins, oldest first."""
