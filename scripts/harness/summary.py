"""The summary of a run: the features in each process, the results, a plot in the terminal, and a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness import manifests, pins
from harness.training import Outcome
from verl_npu.cli.status import shares
from verl_npu.language import gettext as _
from verl_npu.language import translate
from verl_npu.manifest import Manifest
from verl_npu.reporting import clean

_MEANING = {
    "applied": _("verl-npu's patches were checked and applied"),
    "pending": _("the process has not imported the modules to patch"),
    "native": _("upstream's own code already has the fix"),
    "absent": _("nothing to patch at this revision, or the package is not installed"),
}


def print_features(found: Sequence[Manifest], console: Console) -> None:
    """Print a table of each feature's states and the processes in each state. Also print the reason for each patch
    that was not applied."""
    if not found:
        nothing = _("verl-npu: no process wrote a manifest, so the states of the features are unknown")
        console.print(translate(nothing), style="yellow")
        return
    # The rows are features and not processes, because the number of processes grows with the job.
    headers = map(translate, (_("feature"), _("state"), _("processes")))
    table = Table(*headers, title=translate(_("verl-npu in each process")), title_justify="left")
    last = ""
    for share in shares(found):
        table.add_row("" if share.feature == last else share.feature, clean(share.state), clean(share.processes))
        last = share.feature
    console.print(table)
    for state in dict.fromkeys(share.state for share in shares(found)):
        if state in _MEANING:
            console.print(f"{state}: {translate(_MEANING[state])}")
    for patch, reason in sorted(manifests.refusals(found).items()):
        console.print(f"  {clean(patch)}: {clean(reason)}", style="red")


def plot(outcome: Outcome) -> None:
    """Plot the reward for each step in the terminal."""
    import plotext

    plotext.clear_figure()
    plotext.plot_size(72, 16)
    plotext.theme("clear")
    plotext.plot(range(1, len(outcome.values) + 1), outcome.values, marker="braille")
    title = _("mean reward by step (SIMULATED)") if outcome.machine.virtual else _("mean reward by step")
    plotext.title(translate(title))
    # The remaining colour codes would be noise in a file.
    print(plotext.uncolorize(plotext.build()))


def picture(outcome: Outcome, path: Path) -> None:
    """Plot the reward for each step, and save the plot as a PNG file."""
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
    """Print the result of the run."""
    request = outcome.request
    if outcome.machine.virtual:
        said = _("SIMULATED: {npus} virtual NPUs. Nothing here is a measurement of an NPU.").format(npus=request.npus)
        console.print(translate(said), style="bold")
    source = f"verl {request.pin.name}"
    if request.checkout:
        source = _("{verl} from {path}").format(verl=source, path=request.checkout.path)
    console.print(translate(source))
    if outcome.machine.virtual:
        console.print(translate(_("rollouts by {engine}").format(engine=_engine(outcome))))
    # Not translated, because `verl-npu doctor --log` reads this line.
    console.print(f"{len(outcome.values)} of {request.steps} steps in {outcome.ended.seconds:.0f} s, start included")
    if outcome.values:
        speed = _("{speed:.2f} steps per second; reward {shape}").format(
            speed=outcome.steps_per_second, shape=shape(outcome.values)
        )
        console.print(translate(speed))


def _engine(outcome: Outcome) -> str:
    """Return a human-readable name of the rollout engine on virtual NPUs."""
    request = outcome.request
    if request.rollout != pins.SMALL and request.pin.engine is not None:
        return f"{request.rollout} {request.pin.engine.vllm_ascend}"
    if request.pin.virtual_rollout == "virtual":
        return _("the small engine")
    return _("verl's own engine on transformers")


def shape(values: list[float]) -> str:
    """Describe the means of the first and of the last quarter of the values, because single steps are noisy."""
    few = max(1, len(values) // 4)
    first, last = sum(values[:few]) / few, sum(values[-few:]) / few
    return _("{first:.3f} in the first {few} steps, {last:.3f} in the last {few}").format(
        first=first, last=last, few=few
    )
