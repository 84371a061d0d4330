"""Compares the plans of `verl-npu plan` with the figures that verl-ascend-recipe has published for the same jobs.

Run `python benchmarks/plan_baselines.py CHECKOUT [JOB ...] [--lengths mean|spread|greatest]` in an environment with
the packages of that verl, and with MindSpeed and Megatron for the jobs that need them. The scripts are in the
checkout, which must contain recipe/ for DAPO. It prints one line of JSON for each job.

The lengths of sequences are not published. Their mean follows from throughput, NPUs, and seconds of a step. The length
of the question is an assumption. With "spread", the standard deviation of the answers is assumed to be half of their
mean, for all jobs. With "mean" all sequences have the same length. With "greatest" they have the maximum length of the
script, which is the default of a plan.

Memory is verl's own figure, as a plan gives it. No parameter is fitted to memory. The time of an engine for a layer
and token of the longest answer is fitted for each job to the times of all other jobs with such an engine, with graphs
or without ("left_out"). Only one job has an engine without graphs, so the reports of users serve for it. SIMULATED.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_npu_workbench.comparison.standards import BASELINES

GIB = 1 << 30
SPREAD = 0.5


@dataclass(frozen=True, slots=True)
class Report:
    """A user's measurement of an engine without graphs that served a mixture-of-experts model on A2."""

    source: str
    token: float
    """The seconds between two tokens of a sequence."""
    layers: int

    def decoding(self) -> float:
        return self.token / self.layers


EAGER_REPORTS = (
    Report("vllm-ascend issue 770: Qwen3-30B-A3B, 6 tokens a second", 1 / 6, 48),
    Report("vllm-ascend issue 5714: Qwen3-Next-80B-A3B, 6 tokens a second", 1 / 6, 48),
    Report("vllm-ascend issue 2446: GLM-4.5, at least 400 ms for a token", 0.4, 92),
    Report("vllm-plugin-FL pull request 349: Qwen3.6-35B-A3B, 161 ms for a token", 0.161, 40),
)
"""All reports in the threads of the two projects that give the model, the time, and enforce_eager or an equivalent."""


@dataclass(frozen=True, slots=True)
class Job:
    """A published job, and the settings of its script."""

    baseline: str
    sequences: int
    npus: int
    prompt: int = 130
    """The tokens of a question, about as many as GSM8K has in Qwen3's template."""
    picture: int = 0
    """The tokens of its picture among them."""


JOBS = (
    Job("a2-ppo-qwen3-8b-fsdp", 32, 8),
    Job("a2-gspo-qwen3-8b-fsdp2", 32 * 4, 8),
    Job("a2-qwen3-vl-8b-fsdp2", 16 * 5, 8, prompt=400, picture=150),
    Job("a2-dapo-moonlight-16b-megatron", 32 * 16, 8, prompt=150),
    Job("a3-grpo-qwen3-30b-megatron-sglang", 16 * 8, 16, prompt=150),
    Job("a3-gspo-qwen3-30b-megatron", 32 * 4, 16),
)


@dataclass(frozen=True, slots=True)
class Found:
    """The plan of a job."""

    job: Job
    tokens: int
    memory: float
    """In GiB."""
    least: float
    most: float
    training: float
    """The most seconds of a step without the rollout."""
    decoded: int
    """The number of layers times the tokens of the longest answer."""
    eager: bool
    took: float

    def measured(self) -> float:
        return BASELINES[self.job.baseline].step_seconds

    def decoding(self) -> float:
        """Return the seconds for a layer and token that remain of the measured step."""
        return (self.measured() - self.training) / self.decoded


def main() -> None:
    """Plan each job, and print it beside the measurements."""
    asking = argparse.ArgumentParser(description="Compare plans with published figures.")
    asking.add_argument("checkout", type=Path)
    asking.add_argument("jobs", nargs="*", choices=[[], *(job.baseline for job in JOBS)])
    asking.add_argument("--lengths", choices=("mean", "spread", "greatest"), default="spread")
    asked = asking.parse_args()
    chosen = [job for job in JOBS if not asked.jobs or job.baseline in asked.jobs]
    found = [_beside(job, asked.checkout, asked.lengths) for job in chosen]
    for each in found:
        others = [other.decoding() for other in found if other is not each and other.eager == each.eager]
        others += [report.decoding() for report in EAGER_REPORTS if each.eager]
        print(json.dumps(_row(each, others)), flush=True)


def _row(found: Found, others: Sequence[float]) -> Mapping[str, object]:
    baseline = BASELINES[found.job.baseline]
    row: dict[str, object] = {
        "job": found.job.baseline,
        "tokens": found.tokens,
        "measured_gib": round(baseline.memory, 2),
        "planned_gib": round(found.memory, 2),
        "difference": round(found.memory / baseline.memory - 1, 4),
        "measured_seconds": round(baseline.step_seconds, 1),
        "planned_seconds": [round(found.least, 1), round(found.most, 1)],
        "took": round(found.took, 1),
        "decoding_ms": round(found.decoding() * 1e3, 3),
    }
    usable = [each for each in others if each > 0]
    if usable:
        fitted = math.exp(sum(map(math.log, usable)) / len(usable))
        expected = found.training + fitted * found.decoded
        row["left_out"] = {
            "decoding_ms": round(fitted * 1e3, 3),
            "seconds": round(expected, 1),
            "difference": round(expected / found.measured() - 1, 3),
        }
    return row


def _beside(job: Job, checkout: Path, lengths: str) -> Found:
    baseline = BASELINES[job.baseline]
    length = round(baseline.throughput * baseline.step_seconds * job.npus / job.sequences)
    sizes: dict[str, float] = {"--picture-tokens": job.picture}
    if lengths != "greatest":
        sizes |= {"--prompt-length": job.prompt, "--response-length": length - job.prompt}
    if lengths == "spread":
        sizes["--spread"] = SPREAD
    plan = _plan(job, checkout, sizes)
    spans: list[Mapping[str, Any]] = plan["seconds"]
    step, rollout = spans[-1], spans[0]
    return Found(
        job=job,
        tokens=length,
        memory=sum(plan["allocated"].values()) / GIB,
        least=step["least"],
        most=step["most"],
        training=step["most"] - rollout["most"],
        decoded=plan["share"]["longest"] * plan["model"]["layers"],
        eager=plan["rollout"]["eager"],
        took=plan["took"],
    )


def _plan(job: Job, checkout: Path, sizes: Mapping[str, float]) -> Mapping[str, Any]:
    baseline = BASELINES[job.baseline]
    script = next(checkout.glob(f"tests/special_npu/**/{baseline.script}.sh"))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "verl_npu", "plan", str(script), "--verl", str(checkout)]
        command += [word for name, value in sizes.items() for word in (name, str(value))]
        command += ["--npu", baseline.hardware.lower(), "--timeout", "1800", "--no-tries", "--json"]
        done = subprocess.run(
            [*command, "--output", folder],
            env=os.environ | {"NGPUS_PER_NODE": str(job.npus)},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if not done.stdout:
        raise SystemExit(f"{job.baseline} was not planned; see the error above")
    found: Mapping[str, Any] = json.loads(done.stdout)
    failed = [rank["error"] for rank in found["ranks"] if rank["error"]]
    if failed:
        raise SystemExit(f"{job.baseline} was not planned: {failed[0]}")
    return found


if __name__ == "__main__":
    main()
