"""Job and Plan: a kind of training job, and one run of such a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.pins import SMALL, Pin

AGREED = r"\d+ processes agree on what is patched"
"""A line that verl-npu logs before the first step, after it has compared the processes of a job."""
_UNUSED = ("fused_kernels", "linear_attention")
"""Features whose targets a job imports only if its `uses` names them."""


@dataclass(frozen=True)
class Plan:
    """The values that make up a job's command line."""

    pin: Pin
    run_dir: Path
    model: str
    train: Path
    test: Path
    generated: bool
    """True for the small generated model and data, which need their own learning rate and lengths."""
    reward: Path | None
    """A file with a reward function `grade`; None for verl's own reward for the data source."""
    steps: int
    npus: int
    seed: int
    virtual: bool
    rollout: str = SMALL
    """The rollout engine on virtual NPUs, one of pins.ENGINES."""
    checkout: Path | None = None
    """The checkout of verl, if one is used."""


@dataclass(frozen=True)
class Job:
    """One kind of training job: how its command line is built, and where its results are."""

    name: str
    arguments: Callable[[Plan], list[str]]
    """The arguments of the Python executable."""
    metric: str
    """The metric in verl's step lines that judges the job: the reward, or for supervised training the loss."""
    trained_model: Callable[[Plan], Path]
    """The folder with the trained weights as safetensors after the job."""
    idle: tuple[str, ...] = ()
    """Features whose targets the job never imports, so that they may be pending in all processes."""
    uses: tuple[str, ...] = ()
    """Features of _UNUSED that must be applied."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the job, unless the user has set them."""
    evidence: str = ""
    """A pattern that the log must match once for each step, with a number that counts the matches."""
    lines: tuple[str, ...] = ()
    """Patterns that the log must match at least once."""
    applied: tuple[str, ...] = ()
    """Patches that must be applied in every process, unless there is nothing to patch at the pin."""
    packages: tuple[str, ...] = ()
    """Packages of the run's environment beyond the pin's list, installed without their dependencies."""
    sources: tuple[str, ...] = ()
    """Environment variables that each specify a checkout of a package that is not in any package index."""
    key_value_heads: int = 1
    """The number of key-value heads of the generated model. Tensor parallelism needs one for each NPU."""
    experts: int = 0
    """The number of experts in each layer of the generated model, which is a Qwen3-MoE if this number is not 0."""
    architecture: str = ""
    """The small model of `verl-npu rehearse` that is trained. Empty for the harness's own small model."""
    still: str = "$^"
    """A pattern of the weights that the training does not change."""
    engines: tuple[str, ...] = (SMALL,)
    """The engines of pins.ENGINES that the job supports on virtual NPUs."""
    processes: Callable[[int], int] = lambda npus: npus + 2
    """The number of processes that write a manifest, by the number of NPUs. Ray adds the driver and the task
    runner."""

    @property
    def pending(self) -> tuple[str, ...]:
        """The features that the job does not use. They may stay pending in every process."""
        return (*self.idle, *(name for name in _UNUSED if name not in self.uses))

    @property
    def label(self) -> str:
        """The human-readable name of the metric."""
        return "reward" if self.metric.startswith("critic/") else self.metric.rpartition("/")[2]
