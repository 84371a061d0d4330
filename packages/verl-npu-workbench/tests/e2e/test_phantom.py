"""Steps of verl cost the same to the byte whether weights are phantoms or not.

Compared are the numbers that verl itself prints for GRPO, PPO and DAPO, and the ranks' peaks for supervised
fine-tuning, whose trainer prints none. DAPO needs VERL_NPU_UPSTREAMS, a folder with `verl-v0.6.1/`: its recipe is in
no wheel.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

for needed in ("torch", "pandas", "tokenizers", "transformers"):
    pytest.importorskip(needed)

from harness import jobs, model, training  # noqa: E402  # need them

from .conftest import PROJECT, Train  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.virtual, pytest.mark.nightly]

PHANTOM = "0.03125"  # MiB: all weights but those of norms are larger
STEPS, NPUS = 2, 2
LEARNING = (
    "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    f"custom_reward_function.path={Path(__file__).with_name('turned.py')}",
)
"""The settings of each job that generates answers."""
PADDED = ("data.max_prompt_length=192",)
UNPADDED = (
    "data.max_response_length=64",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=16384",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=16384",
)
"""Settings with so many tokens at once that they need more memory than making flash attention's mask, which happens
once."""

Run = Callable[..., training.Outcome]


@pytest.fixture
def run(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that takes the steps of a job, with phantoms or without."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]))

    def take(job: str, phantom: bool, settings: tuple[str, ...], checkout: Path | None = None) -> training.Outcome:
        monkeypatch.setenv("VIRTUAL_ASCEND_PHANTOM", PHANTOM if phantom else "0")
        return train(job, STEPS, tmp_path / ("phantom" if phantom else "real"), settings, checkout)

    return take


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Return settings that give each answer the greatest length, for a model whose end-of-answer id is no token.

    Answers without values have no end in them. Those with values may have one: with `ignore_eos` the engine goes on
    after it, but verl's synchronous rollouts leave the rest out of the batch (`get_response_mask`), and the trainer's
    attention keeps fewer tokens then.
    """
    made = model.generate

    def generate(folder: Path, *given: object, **named: object) -> Path:
        path = made(folder, *given, **named)  # type: ignore[arg-type]  # they are those of the original
        settings = path / "generation_config.json"
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token_id": model.VOCABULARY}))
        return path

    monkeypatch.setattr(model, "generate", generate)
    return ("actor_rollout_ref.rollout.ignore_eos=True",)


@pytest.fixture
def recipes(pin: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the source of verl with its recipes, and make processes import it."""
    folder = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none")).resolve() / f"verl-{pin}"
    if not (folder / "recipe" / "dapo").is_dir():
        pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with verl-{pin}/")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    return folder


def _of_each_step(outcome: training.Outcome, prefix: str) -> list[dict[str, float]]:
    return [
        {name: value for name, value in each.items() if name.startswith(prefix)} for each in outcome.steps.values()
    ]


def _compare(real: training.Outcome, phantom: training.Outcome, length: int) -> None:
    # A step without values has a gradient of zeros.
    norms = [[step["actor/grad_norm"] for step in each.steps.values()] for each in (real, phantom)]
    assert all(norm > 0 for norm in norms[0])
    assert norms[1] == [0.0] * len(norms[0])
    answers = [_of_each_step(each, "response_length/m") for each in (real, phantom)]
    assert {found for steps in answers for step in steps for found in step.values()} == {length}
    peaks = [_of_each_step(each, "perf/max_memory") for each in (real, phantom)]
    assert peaks[1] == peaks[0]
    assert all(step["perf/max_memory_allocated_gb"] > 0 for step in peaks[0])


@pytest.mark.parametrize("job", ["grpo", "ppo"])
def test_verl_prints_the_same_peaks(run: Run, endless: tuple[str, ...], job: str) -> None:
    settings = LEARNING + PADDED + endless
    _compare(*(run(job, phantom, settings) for phantom in (False, True)), length=16)


def test_verls_recipe_of_dapo_prints_the_same_peaks(run: Run, endless: tuple[str, ...], recipes: Path) -> None:
    settings = LEARNING + UNPADDED + endless
    real, phantom = (run("dapo", kind, settings, recipes) for kind in (False, True))
    _compare(real, phantom, length=64)
    # From the second step on the optimizer's state is there, so the peaks of training are compared.
    first, second = (step["perf/max_memory_allocated_gb"] for step in real.steps.values())
    assert second > first


@pytest.fixture
def tell_peaks(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Make each rank of fine-tuning print its peak; return a list that gets the command lines of the trainer."""
    job = jobs.JOBS["sft"]
    started: list[list[str]] = []

    def arguments(plan: jobs.Plan) -> list[str]:
        words = job.arguments(plan)
        place = words.index(plan.pin.sft)
        started.append(words[place:])
        return [*words[: place - 1], str(Path(__file__).with_name("peak.py")), *words[place:]]

    monkeypatch.setitem(jobs.JOBS, "sft", dataclasses.replace(job, arguments=arguments))
    return started


def _peaks(outcome: training.Outcome) -> list[int]:
    return sorted(map(int, re.findall(r"peak of NPU memory in bytes: (\d+)", outcome.log.read_text())))


def test_supervised_fine_tuning_has_the_same_peaks(run: Run, tell_peaks: list[list[str]]) -> None:
    real, phantom = (run("sft", kind, ()) for kind in (False, True))
    peaks = _peaks(real)
    assert len(peaks) == NPUS
    assert peaks[0] > 0
    assert _peaks(phantom) == peaks
    assert phantom.values == [0.0] * STEPS


def test_a_plan_of_fine_tuning_has_the_peak_of_the_run(run: Run, tell_peaks: list[list[str]], tmp_path: Path) -> None:
    peaks = _peaks(run("sft", False, ()))
    command = [sys.executable, "-m", "verl_npu", "plan", "--json", "--no-tries", "--output", str(tmp_path / "plan")]
    trainer = ["torchrun", f"--nproc_per_node={NPUS}", "-m", *tell_peaks[-1]]
    done = subprocess.run([*command, "--", *trainer], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    planned = max(phase["tensors"] for phase in json.loads(done.stdout)["phases"])
    # The run's sequences are shorter than the greatest length, and attention leaves their padding out.
    assert peaks[-1] <= planned <= 1.03 * peaks[-1]
