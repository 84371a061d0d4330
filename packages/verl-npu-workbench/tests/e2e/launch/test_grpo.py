"""The quickstart's GRPO over several hosts; and a host dies after a checkpoint, comes back, and the steps go on."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from harness import dataset, jobs, model, pins, reward

from .conftest import Launch, Site

pytestmark = [pytest.mark.e2e, pytest.mark.virtual, pytest.mark.upstream]
NIGHTLY = pytest.mark.nightly("verl_npu/features/fleet", "verl_npu/features/device", "verl_npu_workbench/launch")

STEPS, SAVED = 7, 4
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
OPTIONS = ("--cpus", "16", "--wait", "150")


def command(folder: Path, pin: str, hosts: int) -> tuple[str, ...]:
    """The quickstart's job, for several hosts, with a checkpoint at each step."""
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
        f"trainer.nnodes={hosts}",
        "trainer.resume_mode=auto",
        "trainer.save_freq=1",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra]",
        "ray_kwargs.ray_init.num_cpus=null",
        *(f"{setting}={64 // hosts}" for setting in MICRO),
    ]
    return (sys.executable, *jobs.JOBS["grpo"].arguments(plan), *settings)


def curve(text: str, metric: str) -> dict[int, float]:
    """A metric by step, as it was logged."""
    return {int(step): float(value) for step, value in re.findall(rf"step:(\d+) - .*?{metric}:(\S+)", text)}


def scores(text: str) -> dict[int, float]:
    return curve(text, "critic/score/mean")


def entropy(text: str) -> dict[int, float]:
    """How undecided the model is, which falls at each step of this job."""
    return curve(text, "actor/entropy")


@pytest.fixture
def job(site: Site, pin: str, request: pytest.FixtureRequest) -> tuple[str, ...]:
    return command(site.root, pin, getattr(request, "param", 2))


@NIGHTLY
@pytest.mark.parametrize("job", [2, 4], indirect=True, ids=["two hosts", "four hosts"])
def test_one_command_over_ssh_trains_over_several_hosts(
    site: Site, job: tuple[str, ...], ssh: str, request: pytest.FixtureRequest
) -> None:
    count = request.node.callspec.params["job"]
    hosts = site.hosts[:count]
    options = (*OPTIONS, "--hosts", ",".join(host.name for host in hosts), "--ssh")
    launch = site.launch(*options, start=1, command=job, **VARIABLES, PATH=ssh)
    found = launch.statuses(within=600)
    said = launch.text(hosts[0])
    print(f"| GRPO over {count} hosts over ssh | {found} | {launch.seconds:.0f} | {site.left()} | {scores(said)}")
    print(f"entropy {entropy(said)}")
    assert found == [0], launch.everything()
    assert [*scores(said)] == [*range(1, STEPS + 1)]
    assert f"the job has started: {count} nodes" in said
    # The driver, the task runner, and a worker for each NPU.
    assert f"{2 + 2 * count} processes agree on what is patched" in said
    assert all(f"ip={host.address}" in said for host in hosts[1:])
    assert site.left() == []


@pytest.mark.nightly
def test_a_training_goes_on_from_its_checkpoint_after_a_host_died(site: Site, job: tuple[str, ...]) -> None:
    h0, h1, _, _ = site.hosts
    options = (*OPTIONS, "--restarts", "1")
    launch: Launch = site.launch(*options, command=job, **VARIABLES)
    latest = site.root / "checkpoints" / "latest_checkpointed_iteration.txt"
    launch.await_that(lambda: latest.exists() and int(latest.read_text() or 0) >= SAVED, "a checkpoint", within=400)
    site.kill(launch, h1)
    launch.await_text(h0, "restart 1 of 1")
    saved = int(latest.read_text())
    site.join(launch, h1, *options, command=job, **VARIABLES)
    found = launch.statuses(within=400)
    before, after = launch.text(h0).split("restart 1 of 1")
    print(f"| GRPO, a host dies and comes back | {found} | {launch.seconds:.0f} | {site.left()}")
    print(f"checkpoint {saved}, reward before {scores(before)}, after {scores(after)}")
    print(f"entropy before {entropy(before)}, after {entropy(after)}")
    assert found == [0, 0], launch.everything()
    assert [*scores(after)] == [*range(saved + 1, STEPS + 1)]
    assert [*scores(before)][-1] in (saved, saved + 1)
    # A model that began anew would be as undecided as at the first step.
    assert entropy(after)[saved + 1] < entropy(before)[1] - 0.05
    assert site.left() == []
