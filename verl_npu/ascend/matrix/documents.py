"""How the tables of this package are written: a document, and then each part with what the documents say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from .claim import VLLM, Cell, Claim, Image, Pin, Source
from .component import Component

__all__ = ["Document", "images", "pin"]

VERL = "verl"


@dataclass(frozen=True, slots=True)
class Document:
    """A file of an upstream at one revision."""

    source: Source
    engine: str = ""
    npu: str = ""

    @classmethod
    def of_verl(cls, revision: str, path: str, engine: str = "", npu: str = "") -> Document:
        """A file of verl; `engine` and `npu` as in Claim."""
        return cls(Source(VERL, revision, path), engine, npu)

    @classmethod
    def of_vllm_ascend(cls, revision: str, path: str = "requirements.txt") -> Document:
        """A file of vllm-ascend, which counts only where it is installed."""
        return cls(Source("vllm-ascend", revision, path), VLLM)

    def says(self, needs: str, revision: str = "", note: str = "") -> Claim:
        """What it needs of a part."""
        return Claim(needs, self.source, revision, self.engine, self.npu, note=note)

    def refuses(self, note: str = "") -> Claim:
        """It says that a part does not work on NPUs."""
        return Claim("", self.source, "", self.engine, self.npu, unsupported=True, note=note)


def images(revision: str, a2: tuple[str, str], a3: tuple[str, str]) -> tuple[Image, ...]:
    """The images of a pin: for each kind of NPU the name and tag of the base, and the Dockerfile in docker/ascend."""
    return tuple(
        Image(npu, base, Source(VERL, revision, f"docker/ascend/{dockerfile}"))
        for npu, (base, dockerfile) in (("a2", a2), ("a3", a3))
    )


def pin(name: str, commit: str, claims: Mapping[Component, Sequence[Claim]], built: tuple[Image, ...] = ()) -> Pin:
    """One revision of verl."""
    cells = {component: Cell(component, tuple(said)) for component, said in claims.items()}
    return Pin(name, commit, MappingProxyType(cells), built)
