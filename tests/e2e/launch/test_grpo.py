"""GRPO over two hosts with two virtual NPUs each; a host dies after a checkpoint, comes back, and the steps go on."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from harness import dataset, jobs, model, pins, reward

from .conftest import Launch, Site

pytestmark = [pytest.mark.e2e, pytest.mark.virtual, pytest.mark.upstream]

STEPS = 4
MICRO = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
)
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "300000000",
}
OPTIONS = ("--cpus", "16", "--restarts", "1", "--wait", "120")


def command(folder: Path, pin: str) -> tuple[str, ...]:
    """The quickstart's job, for two hosts, with a checkpoint at each step."""
    train, test = dataset.generate(folder / "data", 1)
    plan = jobs.Plan(
        pin=pins.PINS[pin],
        run_dir=folder,
        model=str(model.generate(folder / "model", 1, 1, 0, padded=True)),
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
        "trainer.nnodes=2",
        "trainer.resume_mode=auto",
        "trainer.save_freq=1",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra]",
        "ray_kwargs.ray_init.num_cpus=null",
        *(f"{setting}=32" for setting in MICRO),
    ]
    return (sys.executable, *jobs.JOBS["grpo"].arguments(plan), *settings)


def steps(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"step:(\d+) - ", text)]


def scores(text: str) -> list[str]:
    return re.findall(r"step:(\d+) - .*?critic/score/mean:([-\d.e]+)", text)


def test_a_training_goes_on_from_its_checkpoint_after_a_host_died(site: Site, pin: str) -> None:
    h0, h1, _, _ = site.hosts
    job = command(site.root, pin)
    launch: Launch = site.launch(*OPTIONS, command=job, **VARIABLES)
    latest = site.root / "checkpoints" / "latest_checkpointed_iteration.txt"
    launch.await_that(lambda: latest.exists() and int(latest.read_text()) >= 2, "a checkpoint", within=300)
    bystander = site.bystanders.pop(1)
    h1.die()
    bystander.wait()
    launch.processes.pop("h1").wait()
    launch.await_text(h0, "restart 1 of 1")
    site.join(launch, h1, *OPTIONS, command=job, **VARIABLES)
    found = launch.statuses(within=400)
    said = launch.text(h0)
    print(f"| GRPO, a host dies and comes back | {found} | {launch.seconds:.0f} | {site.left()} | {scores(said)}")
    assert found == [0, 0], launch.everything()
    assert steps(said)[0] == 1
    before, after = said.split("restart 1 of 1")
    first = steps(after)[0]
    assert 1 < first <= steps(before)[-1] + 1
    assert steps(after) == [*range(first, STEPS + 1)]
    assert site.left() == []
