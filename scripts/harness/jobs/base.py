"""What a job is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.pins import SMALL, Pin

__all__ = ["AGREED", "UNUSED", "Job", "Plan"]

AGREED = r"\d+ processes agree on what is patched"
"""What the comparison of a job's processes says before the first step."""
UNUSED = ("fused_kernels",)
"""Features whose targets no job imports: none asks verl for its fused Triton kernels."""


@dataclass(frozen=True)
class Plan:
    """All that a job needs to write its command."""

    pin: Pin
    run_dir: Path
    model: str
    train: Path
    test: Path
    generated: bool
    """Model and data are the small generated ones, so that the learning rate and lengths for those apply."""
    reward: Path | None
    """A file with a reward function `grade`; None: verl's own for the data source."""
    steps: int
    npus: int
    seed: int
    virtual: bool
    rollout: str = SMALL
    """What generates on virtual NPUs, one of pins.ENGINES."""
    checkout: Path | None = None
    """Where verl's source is used as it lies."""


@dataclass(frozen=True)
class Job:
    """One way of training: the command that starts it, and where its numbers are found."""

    name: str
    arguments: Callable[[Plan], list[str]]
    """What follows the python executable."""
    metric: str
    """What the job is judged by in verl's step lines: the reward, or for supervised training the loss."""
    trained_model: Callable[[Plan], Path]
    """The folder that holds the trained weights as safetensors when the job has ended."""
    idle: tuple[str, ...] = ()
    """Features of verl-npu whose targets the job never imports: pending in all processes is right for them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the job runs with, where the user has not set them."""
    evidence: str = ""
    """A line of the log that must be there once for each step, with a number that counts them."""
    lines: tuple[str, ...] = ()
    """Patterns of what the log must say at least once."""
    applied: tuple[str, ...] = ()
    """Patches that must be applied in every process, unless there is nothing to patch at the pin."""
    packages: tuple[str, ...] = ()
    """What the run's environment holds beside the pin's list, without what these ask for themselves."""
    sources: tuple[str, ...] = ()
    """Environment variables, each naming a checkout of what is in no registry; the run imports from there."""
    key_value_heads: int = 1
    """Of the generated model: tensor parallelism wants one for each NPU."""
    experts: int = 0
    """Of each layer of the generated model, which is then a Qwen3-MoE."""
    engines: tuple[str, ...] = (SMALL,)
    """The engines of pins.ENGINES that the job was written for, on virtual NPUs."""
    processes: Callable[[int], int] = lambda npus: npus + 2
    """How many processes leave a manifest for so many NPUs: under Ray the driver and the task runner as well."""

    @property
    def label(self) -> str:
        """What a person calls the metric."""
        return "reward" if self.metric.startswith("critic/") else self.metric.rpartition("/")[2]
