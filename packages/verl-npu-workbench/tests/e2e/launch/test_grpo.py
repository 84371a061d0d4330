"""The quickstart's GRPO over several hosts."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from harness import dataset, jobs, model, pins, reward

from .conftest import Launch, Start

pytestmark = [pytest.mark.e2e, pytest.mark.virtual, pytest.mark.upstream]
NIGHTLY = pytest.mark.nightly("verl_npu/features/fleet", "verl_npu/features/device", "verl_npu_workbench/launch")
STEPS = 5
MICRO = ("actor.ppo_micro", "ref.log_prob_micro", "rollout.log_prob_micro")
VARIABLES = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def command(launch: Launch, pin: str) -> tuple[str, ...]:
    """Return the quickstart's job, for several hosts."""
    folder = launch.folder
    train, test = dataset.generate(folder / "data", 1)
    plan = jobs.Plan(
        pin=pins.PINS[pin],
        run_dir=folder,
        model=str(model.generate(folder / "model", 1)),
        train=train,
        test=test,
        generated=True,
        reward=Path(reward.__file__),
        steps=STEPS,
        npus=2,
        seed=1,
        virtual=True,
    )
    settings = [
        f"trainer.nnodes={len(launch.hosts)}",
        "ray_kwargs.ray_init.num_cpus=null",
        *(f"actor_rollout_ref.{name}_batch_size_per_gpu={64 // len(launch.hosts)}" for name in MICRO),
    ]
    return (sys.executable, *jobs.JOBS["grpo"].arguments(plan), *settings)


def scores(text: str) -> list[int]:
    """Return the steps that were logged."""
    return [int(step) for step in re.findall(r"step:(\d+) - .*?critic/score/mean:", text)]


@NIGHTLY
@pytest.mark.parametrize("start", [2, 4], indirect=True, ids=["two hosts", "four hosts"])
def test_it_trains_over_several_hosts(start: Start, pin: str) -> None:
    launch = start(on=0)
    job, count = command(launch, pin), len(launch.hosts)
    for host in launch.hosts:
        launch.join(host, job=job, **VARIABLES)
    launch.ends(*[0] * count, within=900)
    said = launch.text("h0")
    assert scores(said) == [*range(1, STEPS + 1)]
    # The driver, the task runner, and a worker for each NPU.
    assert f"{2 + 2 * count} processes agree on what is patched" in said
    assert all(f"ip={host.address}" in said for host in launch.hosts[1:])
