"""What is installed for: a pin, a kind of NPU, a kind of processor, on the host or in an image."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from ..pins import Claim, Component, Environment, Image, Pin

_PYTHONS = ("3.11", "3.10", "3.12")
"""The versions that this package runs on, the one that most pins recommend first."""
_OF_IMAGES = ("dockerfile", "docker/")


class Npu(enum.Enum):
    """A kind of NPU."""

    A2 = "a2"
    A3 = "a3"

    @property
    def soc(self) -> str:
        """The name of the chip for which vllm-ascend's kernels are compiled where there is no NPU (verl's images)."""
        return {Npu.A2: "ascend910b1", Npu.A3: "ascend910_9392"}[self]

    @property
    def kernels(self) -> str:
        """How CANN calls the package with this NPU's operators."""
        return {Npu.A2: "910b", Npu.A3: "A3 (910_93)"}[self]


class Arch(enum.Enum):
    """A kind of processor."""

    X86 = "x86"
    ARM = "arm"


@dataclass(frozen=True, slots=True)
class Target:
    """One environment."""

    pin: Pin
    arch: Arch
    npu: Npu
    in_image: bool = False
    """Within verl's own base image, whose versions may be newer than those of its installation guide."""
    named: Environment | None = None
    """Which of the pin's environments; what verl's own documents say unless given."""

    @property
    def environment(self) -> Environment:
        """The environment that is installed."""
        return self.named or self.pin.environments[0]

    @property
    def name(self) -> str:
        """The pin's name, with that of the environment if it is not what verl's own documents say."""
        return self.pin.name_of(self.environment)

    @property
    def image(self) -> Image | None:
        """The base image that verl's Dockerfile of this pin builds upon, or the published one, if there is one."""
        fitting = (image for image in self.environment.images if image.npu == self.npu.value)
        return next((image for image in fitting if image.arch in ("", self.arch.value)), None)

    @property
    def tag(self) -> str:
        """What the image is called that is built for it, or that is published."""
        if self.image is not None and self.environment.published:
            return self.image.base
        return f"verl-npu:{self.pin.name}-{self.npu.value}"

    def claim(self, component: Component) -> Claim | None:
        """What is installed of a component; None if nothing is."""
        cell = self.environment.cells.get(component)
        claims = [claim for claim in cell.about(arch=self.arch.value) if not claim.unsupported] if cell else []
        if self.in_image:
            claims.sort(key=lambda claim: not any(word in claim.source.document.lower() for word in _OF_IMAGES))
        return claims[0] if claims else None

    def refused(self, component: Component) -> bool:
        """Whether the documents say that a component does not work on NPUs."""
        cell = self.environment.cells.get(component)
        return cell is not None and any(claim.unsupported for claim in cell.about())

    def specifier(self, component: Component) -> str:
        """The version specifier of a component, empty if any will do.

        A build of torch for CPUs has a name of its own on x86, where the plain name is a build for CUDA.
        """
        claim = self.claim(component)
        needs = claim.needs if claim else ""
        if self.arch is Arch.X86 and component in (Component.TORCH, Component.TORCHVISION) and needs.startswith("=="):
            return f"{needs}+cpu"
        return needs

    @property
    def python(self) -> str:
        """The version of Python, such as 3.11."""
        if self.in_image and self.image and not self.environment.published:
            found = re.search(r"py(\d+\.\d+)", self.image.base)
            if found:
                return found[1]
        allowed = SpecifierSet(self.specifier(Component.PYTHON))
        return next((each for each in _PYTHONS if f"{each}.9" in allowed), _PYTHONS[0])
