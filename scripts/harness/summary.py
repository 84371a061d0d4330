"""What a person sees of a run that has ended: features by process, its numbers, a plot in the terminal and a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness import manifests, pins
from harness.training import Outcome
from verl_npu.manifest import Manifest
from verl_npu.reporting import clean
from verl_npu.tools.cli.status import shares

__all__ = ["picture", "plot", "print_features", "print_outcome", "shape"]

_MEANING = {
    "applied": "the patches were read back and are ours",
    "pending": "the process has not imported what it would patch",
    "native": "upstream does it itself",
    "absent": "there is nothing to patch at this revision",
}


def print_features(found: Sequence[Manifest], console: Console) -> None:
    """Print the state of each feature with the processes that are in it, and why one was refused."""
    if not found:
        console.print("verl-npu: no process wrote a manifest: nothing is known of its features", style="yellow")
        return
    # Features and not processes are the rows: their number is fixed, and that of the processes grows with the job.
    table = Table("feature", "state", "processes", title="verl-npu in each process", title_justify="left")
    last = ""
    for share in shares(found):
        table.add_row("" if share.feature == last else share.feature, clean(share.state), clean(share.processes))
        last = share.feature
    console.print(table)
    for state in dict.fromkeys(share.state for share in shares(found)):
        if state in _MEANING:
            console.print(f"{state}: {_MEANING[state]}")
    for patch, reason in sorted(manifests.refusals(found).items()):
        console.print(f"  {clean(patch)}: {clean(reason)}", style="red")


def plot(outcome: Outcome) -> None:
    """Draw the reward by step in the terminal."""
    import plotext

    plotext.clear_figure()
    plotext.plot_size(72, 16)
    plotext.theme("clear")
    plotext.plot(range(1, len(outcome.values) + 1), outcome.values, marker="braille")
    plotext.title("mean reward by step" + (" (SIMULATED)" if outcome.machine.virtual else ""))
    # Its colours are switched off above; what is left of them would show as noise in a file.
    print(plotext.uncolorize(plotext.build()))


def picture(outcome: Outcome, path: Path) -> None:
    """Write the reward by step as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(range(1, len(outcome.values) + 1), outcome.values)
    axes.set(xlabel="step", ylabel="mean reward")
    where = f"{outcome.machine.npus} virtual NPUs, SIMULATED" if outcome.machine.virtual else "NPUs"
    axes.set_title(f"verl {outcome.request.pin.name}, {outcome.request.job}, {where}")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Print what the run came to."""
    request = outcome.request
    if outcome.machine.virtual:
        console.print(
            f"SIMULATED: {request.npus} virtual NPUs. Nothing here is a measurement of an NPU.", style="bold"
        )
    console.print(f"verl {request.pin.name}" + (f" from {request.checkout.path}" if request.checkout else ""))
    if outcome.machine.virtual:
        console.print(f"rollouts by {_engine(outcome)}")
    console.print(f"{len(outcome.values)} of {request.steps} steps in {outcome.ended.seconds:.0f} s, start included")
    if outcome.values:
        console.print(f"{outcome.steps_per_second:.2f} steps per second; reward {shape(outcome.values)}")


def _engine(outcome: Outcome) -> str:
    """What generated on virtual NPUs, as a person knows it."""
    request = outcome.request
    if request.rollout != pins.SMALL and request.pin.engine is not None:
        return f"{request.rollout} {request.pin.engine.vllm_ascend}"
    return "the small engine" if request.pin.virtual_rollout == "virtual" else "verl's own engine on transformers"


def shape(values: list[float]) -> str:
    """Return the mean of the first and of the last quarter: single steps are noise."""
    few = max(1, len(values) // 4)
    first, last = sum(values[:few]) / few, sum(values[-few:]) / few
    return f"{first:.3f} in the first {few} steps, {last:.3f} in the last {few}"
