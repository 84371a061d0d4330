"""The machine and the environment that are examined: what the subjects look at, and nothing else."""

from __future__ import annotations

import enum
import os
import platform
import resource
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .. import environment
from ..ascend.matrix import SGLANG, VLLM, Component, Pin
from .npu_smi import Answer, ask
from .package import Package, installed_packages

__all__ = ["Judged", "Level", "Site"]


class Level(enum.Enum):
    """How far the doctor goes."""

    STATIC = "static"
    """Files and metadata only; no package of the user's is imported."""
    IMPORT = "import"
    """The pairs are imported, each in a process of its own."""
    DEVICE = "device"
    """An operator and a collective run on the NPUs."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What `verl-npu check` says of the installed verl."""

    pin: str
    """The nearest pin."""
    exact: bool
    refused: tuple[str, ...]
    """The features that drifted, or are left to something of upstream's that is ineffective, with their state."""


@dataclass(frozen=True)
class Site:
    """One environment on one machine; the defaults are this one."""

    pin: Pin | None
    """Whose needs count; None if no verl is found and none was named."""
    judged: Judged | None
    """None if no verl is found."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    python: str = platform.python_version()
    prefix: Path = Path(sys.prefix)
    root: Path = Path("/")
    """What stands for the root of the file system."""
    shared_memory: int | None = None
    """The size of /dev/shm in bytes; None if there is none."""
    open_files: int = 0
    """How many files a process may have open."""

    @classmethod
    def here(cls, pin: Pin | None, judged: Judged | None) -> Site:
        """This machine, with the Python that runs this."""
        try:
            shared = shutil.disk_usage("/dev/shm").total
        except OSError:
            shared = None
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        endless = files == resource.RLIM_INFINITY
        return cls(pin, judged, shared_memory=shared, open_files=sys.maxsize if endless else files)

    def at(self, path: str) -> Path:
        """Return where an absolute path of the file system is."""
        return self.root / path.lstrip("/")

    @cached_property
    def packages(self) -> Mapping[str, Package]:
        """All packages, by canonical name."""
        return installed_packages(self.path)

    def package(self, component: Component) -> Package | None:
        """Return the package of a part, if it is installed."""
        return self.packages.get(component.value.lower().replace("_", "-"))

    @cached_property
    def smi(self) -> Answer:
        """What `npu-smi info` answers."""
        return ask(self.environ)

    @property
    def virtual(self) -> str:
        """How many virtual NPUs are asked for; empty if none are."""
        count = environment.VIRTUAL.text(self.environ)
        return "" if count == "0" else count

    @cached_property
    def engines(self) -> frozenset[str]:
        """The rollout engines that are installed."""
        parts = {VLLM: (Component.VLLM, Component.VLLM_ASCEND), SGLANG: (Component.SGLANG,)}
        return frozenset(name for name, each in parts.items() if any(map(self.package, each)))

    @cached_property
    def is_ascend(self) -> bool:
        """Whether there is a sign of Ascend's software or hardware at all."""
        signs = ("/usr/local/Ascend", "/dev/davinci_manager", "/dev/davinci0")
        named = any(name in self.environ for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"))
        return (
            named
            or self.smi.exists
            or any(map(self.package, (Component.TORCH_NPU, Component.VLLM_ASCEND)))
            or any(self.at(sign).exists() for sign in signs)
        )

    @property
    def kind(self) -> str:
        """`a2`, `a3`, `a5`, or empty if it cannot be told."""
        kinds = {npu.kind for npu in self.smi.npus}
        return kinds.pop() if len(kinds) == 1 else ""

    def attention_in_force(self) -> bool:
        """Whether verl-npu's feature `attention` is switched on in jobs that start here."""
        off = environment.SWITCH.text(self.environ) == "off"
        left_out = environment.DISABLE.text(self.environ).replace(" ", "").split(",")
        return not off and "attention" not in left_out and self.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0"
