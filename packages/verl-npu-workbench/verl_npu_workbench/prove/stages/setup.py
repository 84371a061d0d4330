"""The settings of a stage, and the NPUs that it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from verl_npu.ascend import software
from verl_npu.ascend.variables import virtual_npus
from verl_npu.errors import AscendSoftwareError

from ...extras import is_installed
from ..record import NotPossible, Recorder

_PACKAGES = {"hydra": "hydra-core", "yaml": "PyYAML"}
"""The names of packages that differ from the names of their modules."""


def require(*modules: str) -> None:
    """Raise NotPossible if any of these modules is not installed."""
    for module in modules:
        if not is_installed(module):
            raise NotPossible(f"{_PACKAGES.get(module, module)} is not installed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings of a stage."""

    record: Recorder
    scratch: Path
    asked: int
    """The number of NPUs that the stage may use. It is 0 for all."""
    ends: float
    """The time when the stage must end, on the clock `now`."""
    now: Callable[[], float]
    """A clock that returns the counted seconds."""
    recipe: tuple[str, ...] = ()
    """The user's own launch script, with its arguments, to train instead of the small jobs."""

    @property
    def left(self) -> float:
        """The number of seconds that the stage has left."""
        return self.ends - self.now()

    @property
    def simulated(self) -> bool:
        """Whether virtual NPUs are requested."""
        return bool(virtual_npus())

    @property
    def has_the_wheel(self) -> bool:
        """Whether the NPUs are virtual and torch_npu is the official wheel."""
        import torch_npu

        return str(getattr(torch_npu, "__simulated__", "")).startswith("virtual NPUs under torch_npu")

    @property
    def device(self) -> str:
        """The name of the first NPU."""
        import torch

        return str(torch.npu.get_device_name(0))

    def npus(self) -> int:
        """Import torch_npu, and return the number of NPUs to use. Raises NotPossible if there are no NPUs."""
        try:
            import torch

            software.import_torch_npu()
        except (ImportError, AscendSoftwareError) as error:
            raise NotPossible(f"torch cannot be imported with NPU support: {error}") from error
        import torch_npu

        count = int(torch.npu.device_count())
        if count == 0:
            raise NotPossible("torch.npu sees no NPU")
        self.record.note("device", self.device)
        self.record.note("npus", str(count))
        simulated = getattr(torch_npu, "__simulated__", "")
        if simulated:
            self.record.note("simulated", str(simulated))
        return min(count, self.asked) if self.asked else count
