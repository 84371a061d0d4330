"""quickstart.sh: train, watch the steps, and see the results."""

from __future__ import annotations

import sys

from harness import start
from harness.errors import RunFailed
from harness.machine import Machine
from harness.request import Request

from verl_npu.language import gettext as _
from verl_npu.language import translate


def run(request: Request, machine: Machine) -> int:
    """Train and print the results; raise RunFailed if the job did not train."""
    # Not at the top, because these are in the environment that the script makes first.
    from harness import jobs, progress, summary, training
    from rich.console import Console

    result = request.output / "quickstart.json"
    # If this run dies early, an older run's result must not be mistaken for its own.
    result.unlink(missing_ok=True)
    # Without markup, because a path may have brackets in it.
    console = Console(no_color=request.plain, highlight=False, markup=False)
    kind = _("virtual NPUs (SIMULATED)") if machine.virtual else _("NPUs")
    said = _("verl {pin}: GRPO on {npus} {kind}, {steps} steps")
    console.print(translate(said.format(pin=request.pin.name, npus=request.npus, kind=kind, steps=request.steps)))
    job = jobs.JOBS[request.job]
    plain = request.plain or not console.is_terminal
    shown = progress.Lines(request.steps, job) if plain else progress.Bar(request.steps, job, console)
    with shown:
        outcome = training.train(request, machine, shown)
    training.write(result, outcome.as_json())
    summary.print_features(outcome.manifests, console)
    if outcome.values and not request.plain:
        summary.plot(outcome)
    if outcome.values:
        summary.picture(outcome, request.output / "quickstart.png")
    summary.print_outcome(outcome, console)
    console.print(translate(_("log {log}\nresult {result}").format(log=outcome.log, result=result)))
    if not outcome.trained:
        print(training.tail(outcome.log), file=sys.stderr)
        raise RunFailed(_("{failure}. The whole log: {log}").format(failure=outcome.failure, log=outcome.log))
    return 0


if __name__ == "__main__":
    sys.exit(start.main("quickstart.sh", False, run))
