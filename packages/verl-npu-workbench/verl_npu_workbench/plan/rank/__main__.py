"""Reads a job, runs its phases in phantom memory as if this rank were alone in its groups, and writes their cost."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..job import Outcome, Phase, RankJob, Started, StartJob

if TYPE_CHECKING:
    from .recording import Recording

_HOST = "127.0.0.1"


def main() -> int:
    """Return an Outcome for a RankJob, or a Started for a StartJob. Both contain verl's exception, if verl raised
    one."""
    asked = json.load(sys.stdin)
    # verl's own output must not mix with the answer.
    answer, sys.stdout = sys.stdout, sys.stderr
    began = time.monotonic()
    outcome: Outcome | Started
    if "arguments" in asked:
        outcome = _start(StartJob.of_json(asked))
    else:
        outcome = dataclasses.replace(_run(RankJob.of_json(asked)), seconds=time.monotonic() - began)
    json.dump(dataclasses.asdict(outcome), answer)
    answer.flush()
    # Threads of verl and Ray would keep the process alive.
    os._exit(0)


def _start(job: StartJob) -> Started:
    recording = _recording(job.rank)
    from .start import start

    with tempfile.TemporaryDirectory() as folder:
        return start(job, recording, folder)


def _recording(job: RankJob) -> Recording:
    """Start the phantom NPUs and record their work. This process is the rank of one of them."""
    sys.path.insert(0, job.tree)
    os.environ.update(_variables(job))
    import torch  # noqa: F401 - brings up the virtual NPUs
    from virtual_ascend import ledger

    from .recording import Recording

    recording = Recording(ledger)
    ledger.start(job.flops, job.bandwidth, recording.site if job.sites else None)
    ledger.be_alone()
    recording.watch()
    return recording


def _run(job: RankJob) -> Outcome:
    recording = _recording(job)
    from virtual_ascend import ledger

    from .start import described

    error = ""
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            if job.trainer:
                _fine_tune(job, recording, folder)
            else:
                _run_phases(job, recording, folder, missing)
        except Exception as raised:  # the user is told whatever verl raises
            traceback.print_exc()
            said, where, code = described(raised, job.tree)
            error = f"{said} ({where}: `{code}`)"
        return Outcome(
            rank=job.rank,
            phases=recording.costs(),
            timeline=recording.timeline(),
            groups=ledger.groups(),
            host=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            not_shown=missing,
            read=_read(job.tree),
            error=error,
            failed_in=recording.latest.value if error else "",
            sites=recording.sites(),
        )


def _read(tree: str) -> list[str]:
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    return sorted(os.path.relpath(file, tree) for file in files if file.startswith(f"{tree}{os.sep}"))


def _fine_tune(job: RankJob, recording: Recording, folder: str) -> None:
    from .fine_tuning import fine_tune
    from .workers import configuration

    config = configuration(job)
    config.trainer.default_local_dir = folder
    with _writing_nothing():
        fine_tune(config, job, recording)


def _run_phases(job: RankJob, recording: Recording, folder: str, missing: list[str]) -> None:
    """Run the phases in order. Add to `missing` the phases that one rank cannot run alone."""
    from .workers import configuration, workers_of

    config = configuration(job)
    workers = workers_of(config, job)
    with recording.phase(Phase.LOAD):
        workers.load()
    step = workers.step()
    # Train once first: the optimizers have no state before their first step.
    first = {phase: run for phase, run in step.items() if phase.trains}
    for phase, run in [*first.items(), *step.items()]:
        with recording.phase(phase):
            run()
    for phase, reason in workers.not_shown.items():
        missing.append(f"{phase.value}: {reason}")
    if Phase.WEIGHT_SYNC not in workers.not_shown:
        with recording.phase(Phase.WEIGHT_SYNC):
            workers.hand_over()
    if Phase.CHECKPOINT not in workers.not_shown:
        with recording.phase(Phase.CHECKPOINT), _writing_nothing():
            workers.checkpoint(folder)


@contextmanager
def _writing_nothing() -> Iterator[None]:
    """Make torch.save write nothing. Otherwise, it would write zeros into files as large as the real checkpoint."""
    import torch

    before, torch.save = torch.save, lambda *_, **__: None
    try:
        yield
    finally:
        torch.save = before


def _variables(job: RankJob) -> dict[str, str]:
    """Return the variables that Ray's worker group sets for a worker.

    Source: verl/single_controller/base/worker.py, `env_keys`.
    """
    return {
        "RANK": str(job.rank),
        "WORLD_SIZE": str(job.world),
        "LOCAL_RANK": str(job.rank % job.local),
        "LOCAL_WORLD_SIZE": str(job.local),
        "RAY_LOCAL_WORLD_SIZE": str(job.local),
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": "0",
        "WG_BACKEND": "ray",
    }


if __name__ == "__main__":
    sys.exit(main())
