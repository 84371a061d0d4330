from __future__ import annotations

from collections.abc import Mapping

from verl_npu_workbench.logs.training import Assembly, StepLine, TrainingLog


def log_of(steps: Mapping[int, Mapping[str, float]], simulated: bool = False) -> TrainingLog:
    """Return a log of these steps."""
    assembly = Assembly(simulated=simulated)
    for step, metrics in steps.items():
        assembly.add(StepLine(step, metrics))
    return assembly.log("a log")


def constant(value: float, name: str = "critic/rewards/mean", steps: int = 20) -> TrainingLog:
    """Return a log whose metric never changes."""
    return log_of({step: {name: value} for step in range(1, steps + 1)})
