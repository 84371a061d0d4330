"""What `verl-npu plan` says of jobs whose figures verl-ascend-recipe has published, beside those figures.

Run as `python benchmarks/plan_baselines.py CHECKOUT`, in an environment that has the packages of that verl; the
scripts are the checkout's own. The mean length of a sequence is not published: it follows from throughput, NPUs and
seconds of a step. Nothing is fitted. Prints one line of JSON for each job. SIMULATED.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from verl_npu.comparison.baselines import BASELINES

GIB = 1 << 30
PROMPT = 130
"""Tokens of a question of GSM8K in Qwen3's template, about."""


@dataclass(frozen=True, slots=True)
class Job:
    """A published job, and what its script takes from the environment."""

    baseline: str
    sequences: int
    npus: int


JOBS = (
    Job("a2-ppo-qwen3-8b-fsdp", 32, 8),
    Job("a2-gspo-qwen3-8b-fsdp2", 32 * 4, 8),
)


def main() -> None:
    """Plan each job, and print it beside what was measured."""
    asking = argparse.ArgumentParser(description="Plans beside published figures.")
    asking.add_argument("checkout", type=Path)
    asked = asking.parse_args()
    for job in JOBS:
        baseline = BASELINES[job.baseline]
        length = round(baseline.throughput * baseline.step_seconds * job.npus / job.sequences)
        script = next(asked.checkout.glob(f"tests/special_npu/**/{baseline.script}.sh"))
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "verl_npu", "plan", str(script), "--verl", str(asked.checkout)]
            lengths = ["--prompt-length", str(PROMPT), "--response-length", str(length - PROMPT)]
            done = subprocess.run(
                [*command, *lengths, "--no-tries", "--json", "--output", folder],
                env=os.environ | {"NGPUS_PER_NODE": str(job.npus)},
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
        if not done.stdout:
            raise SystemExit(f"{job.baseline} was not planned: the error is above")
        found = json.loads(done.stdout)
        update = next(phase for phase in found["phases"] if phase["phase"] == "update actor")
        step = found["seconds"][-1]
        print(
            json.dumps(
                {
                    "job": job.baseline,
                    "tokens": length,
                    "measured_gib": round(baseline.memory, 2),
                    "planned_gib": round(update["tensors"] / GIB, 2),
                    "difference": round(update["tensors"] / GIB / baseline.memory - 1, 4),
                    "measured_seconds": round(baseline.step_seconds, 1),
                    "planned_seconds": [round(step["least"], 1), round(step["most"], 1)],
                    "took": round(found["took"], 1),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
