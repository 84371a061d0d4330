"""What a person sees: progress while a run goes on, then a summary, a plot in the terminal and one as PNG."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from harness import manifests
from harness.jobs import Job
from harness.training import Outcome


class Lines:
    """One plain line a step."""

    def __init__(self, steps: int, job: Job) -> None:
        self._steps, self._job = steps, job

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        value, seconds = metrics.get(self._job.metric), metrics.get("timing_s/step")
        shown = f"no {self._job.label}" if value is None else f"{self._job.label} {value:.3f}"
        took = "" if seconds is None else f"  {seconds:.2f} s"
        print(f"step {step:>3}/{self._steps}  {shown}{took}", flush=True)


class Bar:
    """A bar that moves with the steps."""

    def __init__(self, steps: int, job: Job, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[shown]}"),
        )
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("starting verl", total=steps, shown="")
        self._job = job

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        value, seconds = metrics.get(self._job.metric), metrics.get("timing_s/step")
        shown = "" if value is None else f"{self._job.label} {value:.3f}"
        shown += "" if seconds is None else f"  {seconds:.2f} s/step"
        self._progress.update(self._task, completed=step, description="training", shown=shown)


def features(outcome: Outcome, console: Console) -> None:
    """Print which features are in which state, in which processes, and why where one was refused."""
    if not outcome.manifests:
        console.print("verl-npu: no process wrote a manifest: nothing is known of its features", style="yellow")
        return
    table = Table(title="verl-npu in each process", title_justify="left")
    names = list(dict.fromkeys(name for manifest in outcome.manifests for name in manifest["features"]))
    for heading in ("process", *names):
        table.add_column(heading)
    for process, states in manifests.by_process(outcome.manifests).items():
        table.add_row(process, *(states.get(name, "-") for name in names))
    console.print(table)
    console.print("applied: read back and ours; pending: this process has not imported what it would patch;")
    console.print("native: upstream does it itself; absent: there is nothing to patch at this revision")
    for patch, reason in sorted(manifests.refusals(outcome.manifests).items()):
        console.print(f"  {patch}: {reason}", style="red", markup=False)


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


def summary(outcome: Outcome, console: Console) -> None:
    """Print what the run came to."""
    request = outcome.request
    if outcome.machine.virtual:
        console.print(
            f"SIMULATED: {request.npus} virtual NPUs. Nothing here is a measurement of an NPU.", style="bold"
        )
    console.print(f"verl {request.pin.name}" + (f" from {request.checkout.path}" if request.checkout else ""))
    console.print(f"{len(outcome.values)} of {request.steps} steps in {outcome.ended.seconds:.0f} s, start included")
    if outcome.values:
        console.print(f"{outcome.steps_per_second:.2f} steps per second; reward {shape(outcome.values)}")


def shape(values: list[float]) -> str:
    """Return the mean of the first and of the last quarter: single steps are noise."""
    few = max(1, len(values) // 4)
    first, last = sum(values[:few]) / few, sum(values[-few:]) / few
    return f"{first:.3f} in the first {few} steps, {last:.3f} in the last {few}"
