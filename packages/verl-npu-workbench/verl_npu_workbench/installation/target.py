"""The target of an installation: a pin, a kind of NPU, and a processor architecture, either on the host or in an
image."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from ..pins import Claim, Component, Environment, Image, Pin

_PYTHONS = ("3.11", "3.10", "3.12")
"""The Python versions that this package supports. The version that most pins recommend comes first."""
_IMAGE_DOCUMENTS = ("dockerfile", "docker/")


class Npu(enum.Enum):
    """A kind of NPU."""

    A2 = "a2"
    A3 = "a3"
    A5 = "a5"
    """Ascend 950."""

    @property
    def soc(self) -> str:
        """The name of the chip. The name is needed to compile vllm-ascend's kernels on a machine without NPUs, for
        example when an image is built."""
        return {Npu.A2: "ascend910b1", Npu.A3: "ascend910_9392", Npu.A5: "ascend950dt_9582"}[self]

    @property
    def kernels(self) -> str:
        """The name of the CANN package that contains the operators for this NPU."""
        return {Npu.A2: "910b", Npu.A3: "A3 (910_93)", Npu.A5: "Ascend 950"}[self]


class Arch(enum.Enum):
    """A processor architecture."""

    X86 = "x86"
    ARM = "arm"


@dataclass(frozen=True, slots=True)
class Target:
    """A pin, the machine to install it on, and the installation options."""

    pin: Pin
    arch: Arch
    npu: Npu
    in_image: bool = False
    """True in verl's own base image. Its versions may be newer than those in verl's installation guide."""
    named: Environment | None = None
    """One of the pin's environments; None means the environment that verl's own documentation describes."""
    jemalloc: bool = False
    """Whether the host's memory allocator is jemalloc."""

    @property
    def environment(self) -> Environment:
        """The selected environment of the pin. It determines the packages to install and their versions."""
        return self.named or self.pin.environments[0]

    @property
    def name(self) -> str:
        """The name of the pin, with the name of the environment appended unless verl's own documentation describes the
        environment."""
        return self.pin.name_of(self.environment)

    @property
    def image(self) -> Image | None:
        """The base image in verl's Dockerfile for this pin, or the published image, or None if neither exists."""
        fitting = (image for image in self.environment.images if image.npu == self.npu.value)
        return next((image for image in fitting if image.arch in ("", self.arch.value)), None)

    @property
    def tag(self) -> str:
        """The name of the image that is built for this target, or of the published image."""
        if self.image is not None and self.environment.published:
            return self.image.base
        return f"verl-npu:{self.pin.name}-{self.npu.value}"

    def claim(self, component: Component) -> Claim | None:
        """Return the claim that determines which version of a component to install, or None if the component is not to
        be installed."""
        cell = self.environment.cells.get(component)
        about = cell.about(npu=self.npu.value, arch=self.arch.value) if cell else ()
        claims = sorted((claim for claim in about if not claim.unsupported), key=lambda claim: not claim.npu)
        if self.in_image:
            claims.sort(key=lambda claim: not any(word in claim.source.document.lower() for word in _IMAGE_DOCUMENTS))
        return claims[0] if claims else None

    @property
    def documented(self) -> bool:
        """Whether verl's documentation covers this kind of NPU. The documentation of every pin covers A2 and A3; only
        some pins cover A5."""
        cells = self.environment.cells.values()
        return self.npu is not Npu.A5 or any(claim.npu == self.npu.value for cell in cells for claim in cell.claims)

    def refused(self, component: Component) -> bool:
        """Return whether the documentation states that a component does not work on NPUs."""
        cell = self.environment.cells.get(component)
        return cell is not None and any(claim.unsupported for claim in cell.about())

    def specifier(self, component: Component) -> str:
        """Return the version specifier of a component, or an empty string if any version is acceptable.

        On x86, the version of torch's CPU build ends in +cpu. The plain version is a CUDA build.
        """
        claim = self.claim(component)
        needs = claim.needs if claim else ""
        if self.arch is Arch.X86 and component in (Component.TORCH, Component.TORCHVISION) and needs.startswith("=="):
            return f"{needs}+cpu"
        return needs

    @property
    def python(self) -> str:
        """The version of Python, for example 3.11."""
        if self.in_image and self.image and not self.environment.published:
            found = re.search(r"py(\d+\.\d+)", self.image.base)
            if found:
                return found[1]
        allowed = SpecifierSet(self.specifier(Component.PYTHON))
        return next((each for each in _PYTHONS if f"{each}.9" in allowed), _PYTHONS[0])
