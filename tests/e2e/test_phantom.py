"""Two steps of verl cost the same to the byte whether weights are phantoms or not: the peaks of the ranks for
supervised fine-tuning, whose trainer prints none, and what verl itself prints for GRPO and PPO, which is not so far.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

for needed in ("torch", "pandas", "tokenizers", "transformers"):
    pytest.importorskip(needed)

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from harness import jobs, machine, pins, training  # noqa: E402  # beside this package
from harness.request import Request  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.virtual, pytest.mark.nightly]

PHANTOM = "0.03125"  # MiB: all weights but those of norms are larger
STEPS, NPUS = 2, 2
FULL = (
    "actor_rollout_ref.rollout.ignore_eos=True",
    "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    f"custom_reward_function.path={Path(__file__).with_name('turned.py')}",
)
"""Answers of full length: a phantom's are no others."""

Train = Callable[..., training.Outcome]


class DifferentPeaks(Exception):
    """What verl prints differs."""


@pytest.fixture
def train(pin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Take the steps of a job, with phantoms or without."""
    monkeypatch.delenv("VERL_NPU_VIRTUAL", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]))

    def run(job: str, phantom: bool, settings: tuple[str, ...]) -> training.Outcome:
        monkeypatch.setenv("VERL_NPU_VIRTUAL_PHANTOM", PHANTOM if phantom else "0")
        request = Request(
            pin=pins.find(pin),
            checkout=None,
            job=job,
            model=None,
            data=None,
            steps=STEPS,
            npus=NPUS,
            seed=0,
            transformers="",
            torch_npu=None,
            rollout=pins.SMALL,
            output=tmp_path / ("phantom" if phantom else "real"),
            plain=True,
            timeout=400.0,
            make_environment=False,
            overrides=settings,
        )
        outcome = training.train(request, machine.look(NPUS), lambda step, metrics: None)
        assert outcome.trained, f"{outcome.failure}\n{training.tail(outcome.log)}"
        return outcome

    return run


def _compare(train: Train, job: str) -> None:
    real, phantom = (train(job, kind, FULL) for kind in (False, True))
    printed = [
        [
            {name: value for name, value in each.items() if name.startswith("perf/max_memory")}
            for each in steps.values()
        ]
        for steps in (real.steps, phantom.steps)
    ]
    assert len(printed[0]) == STEPS
    assert all(step["perf/max_memory_allocated_gb"] > 0 for step in printed[0])
    # A step without values has a gradient of zeros.
    norms = [[step["actor/grad_norm"] for step in each.steps.values()] for each in (real, phantom)]
    assert all(norm > 0 for norm in norms[0])
    assert norms[1] == [0.0] * STEPS
    if printed[1] != printed[0]:
        raise DifferentPeaks(f"expected {printed[0]}, found {printed[1]}")


# Both print 13312 bytes more with phantoms, of 43.7 MB, at each step and run; nobody knows yet what they are.
@pytest.mark.xfail(raises=DifferentPeaks, strict=True, reason="13312 bytes more, not explained yet")
@pytest.mark.parametrize("job", ["grpo", "ppo"])
def test_verl_prints_the_same_peaks(train: Train, job: str) -> None:
    _compare(train, job)


def test_supervised_fine_tuning_has_the_same_peaks(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    job = jobs.JOBS["sft"]

    def arguments(plan: jobs.Plan) -> list[str]:
        words = job.arguments(plan)
        place = words.index(plan.pin.sft)
        return [*words[: place - 1], str(Path(__file__).with_name("peak.py")), *words[place:]]

    monkeypatch.setitem(jobs.JOBS, "sft", dataclasses.replace(job, arguments=arguments))
    real, phantom = (train("sft", kind, ()) for kind in (False, True))
    peaks = [
        sorted(map(int, re.findall(r"peak of NPU memory in bytes: (\d+)", outcome.log.read_text())))
        for outcome in (real, phantom)
    ]
    assert len(peaks[0]) == NPUS
    assert peaks[0][0] > 0
    assert peaks[1] == peaks[0]
    assert phantom.values == [0.0] * STEPS
