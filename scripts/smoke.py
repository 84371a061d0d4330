"""smoke.sh: the quickstart for CI. Status 0 means that the job trained, the weights changed, and all features applied.

With a recipe's name as --job it rehearses that launch script. Status 0 then means that the script trained.
"""

from __future__ import annotations

import sys
from pathlib import Path

import rehearse
from harness import recipe, start
from harness.errors import RunFailed
from harness.machine import Machine
from harness.request import Request


def run(request: Request, machine: Machine) -> int:
    """Train and check the results; raise RunFailed if anything is wrong."""
    # Not at the top, because these are in the environment that the script makes first.
    from harness import jobs, manifests, progress, summary, training, weights

    job = jobs.JOBS[request.job]
    result = request.output / "smoke.json"
    # If this run dies early, an older run's result must not be mistaken for its own.
    result.unlink(missing_ok=True)
    outcome = training.train(request, machine, progress.Lines(request.steps, job))
    training.write(result, {**outcome.as_json(), "job": request.job})
    if not outcome.trained:
        print(training.tail(outcome.log), file=sys.stderr)
        raise RunFailed(f"{outcome.failure}. The whole log: {outcome.log}")
    moved = weights.compare(Path(outcome.plan.model), job.trained_model(outcome.plan), job.still)
    print(f"weights: {moved.moved} of {moved.tensors} tensors moved, by {moved.largest:.3g} at most")
    wrong = [] if moved.all_moved else [f"{moved.tensors - moved.moved} weight tensors did not move"]
    wrong += manifests.faults(outcome.manifests, job.processes(request.npus), job.pending, job.applied)
    wrong += training.missing_evidence(outcome)
    for line in wrong:
        print(f"smoke.sh: {line}", file=sys.stderr)
    if wrong:
        raise RunFailed(f"{len(wrong)} checks failed, first: {wrong[0]}. The whole log: {outcome.log}")
    steps = f"{len(outcome.values)} steps, {job.label} {summary.shape(outcome.values)}"
    print(f"ok: {request.job} at {request.pin.name}: {steps}")
    return 0


if __name__ == "__main__":
    words = recipe.rehearsal_of(sys.argv[1:])
    sys.exit(rehearse.main("smoke.sh", words) if words else start.main("smoke.sh", True, run))
