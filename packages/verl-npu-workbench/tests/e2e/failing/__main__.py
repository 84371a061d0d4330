"""Run failing jobs and judge their logs: `python -m tests.e2e.failing FOLDER [JOB …]`; logs are kept in FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[5] / "scripts"))

from .jobs import JOBS
from .running import Outcome, run


def row(outcome: Outcome) -> str:
    """Return one line with the diagnosis of a job."""
    root = outcome.said.root
    said = (root.name or root.event.error[:60], str(root.event.process)) if root else ("nothing", "")
    marks = ["right" if good else "WRONG" for good in (outcome.cause, outcome.process)]
    cells = (outcome.job.name, outcome.said.verdict.value, *said, *marks)
    return " | ".join(cells) + f" | status {outcome.status}, {outcome.seconds:.0f} s"


def main() -> None:
    folder, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
    outcomes = []
    for job in JOBS:
        if not names or job.name in names:
            outcomes.append(run(job, folder / job.name))
            print(row(outcomes[-1]), flush=True)
    right = sum(each.cause and each.process for each in outcomes)
    print(f"{right} of {len(outcomes)} right")


main()
