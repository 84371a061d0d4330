"""The processes of a job compared, and the comparison over a real Ray."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest

from verl_npu.features.fleet.comparison import differences

MANIFEST = {
    "host": "h",
    "pid": 1,
    "role": "driver",
    "version": "1",
    "simulated": True,
    "upstreams": {"verl": {"nearest_pin": "v0.6.1", "exact": True, "differs": []}},
    "features": {"device": {"state": "applied"}, "attention": {"state": "pending"}},
}


def process(pid: int, **changes):
    made = copy.deepcopy({**MANIFEST, "pid": pid, "role": "WorkerDict"})
    for path, value in changes.items():
        *outer, last = path.split("__")
        inner = made
        for key in outer:
            inner = inner[key]
        inner[last] = value
    return made


def test_alike_processes_do_not_differ() -> None:
    assert differences([MANIFEST, process(2), process(3)]) == []


def test_applied_and_pending_agree() -> None:
    assert differences([MANIFEST, process(2, features__attention__state="applied")]) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"features__device__state": "drifted"}, "feature device"),
        ({"features__device__state": "disabled"}, "feature device"),
        ({"features__device__state": "shadowed"}, "feature device"),
        ({"features": {"device": {"state": "applied"}}}, "feature attention"),
        ({"version": "2"}, "version"),
        ({"simulated": False}, "virtual or real"),
        ({"upstreams__verl__nearest_pin": "v0.7.1"}, "revision of verl"),
        ({"upstreams__verl__exact": False}, "revision of verl"),
    ],
)
def test_a_process_that_differs_is_named(changes, named: str) -> None:
    (line,) = differences([MANIFEST, process(2), process(3, **changes)])
    assert line.startswith(named)
    assert "WorkerDict h:3" in line


def test_a_process_that_has_not_looked_yet_does_not_differ() -> None:
    assert differences([MANIFEST, process(2, features={}, upstreams={})]) == []


def test_processes_of_two_containers_with_one_name_are_both_compared() -> None:
    lines = differences([process(2, token="a"), process(2, token="b", version="2")])
    assert lines == ["version of the plugin: 1 in WorkerDict h:2; 2 in WorkerDict h:2"]


PROGRAM = """
import os, ray
import verl.trainer.ppo.ray_trainer as trainer
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

environment = get_ppo_ray_runtime_env()
ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment["env_vars"]})

@ray.remote
class Worker:
    def look(self):
        import verl.single_controller.ray.base
        import verl_npu
        return verl_npu.status()["role"]

class Trainer(trainer.RayPPOTrainer):
    def __init__(self):
        pass

@ray.remote
class Runner:
    def run(self):
        import verl.trainer.ppo.ray_trainer as trainer
        from verl_npu.errors import FleetError
        from verl_npu.features.fleet.publication import published
        reached = []
        class Stub:
            pass
        wrapped = trainer.RayPPOTrainer.fit
        try:
            wrapped(Stub())
        except AttributeError:
            reached.append("upstream's fit")
        except FleetError as error:
            reached.append(f"refused: {error}")
        return reached, [m["role"] for m in published()]

changes = [{}, {"VERL_NPU_DISABLE": "device"}] if os.environ.get("MIXED") else [{}, {}]
workers = [Worker.options(runtime_env={"env_vars": change}).remote() for change in changes]
print(ray.get([worker.look.remote() for worker in workers]))
print(ray.get(Runner.remote().run.remote()))
ray.shutdown()
"""


def start(**environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_NPU", "RAY_ADDRESS"))}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**inherited, "VERL_NPU": "on", "RAY_USAGE_STATS_ENABLED": "0", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.upstream
def test_in_a_real_ray_job_every_manifest_reaches_the_trainer() -> None:
    pytest.importorskip("verl")
    pytest.importorskip("ray")
    result = start(VERL_NPU_STRICT="1")
    assert result.returncode == 0, result.stderr
    roles, reached = map(eval, result.stdout.splitlines()[-2:])
    assert roles == ["Worker", "Worker"]
    assert reached[0] == ["upstream's fit"]
    assert sorted(reached[1]) == ["Runner", "Worker", "Worker", "driver"]


@pytest.mark.upstream
def test_strict_refuses_to_train_with_a_mixed_fleet() -> None:
    pytest.importorskip("verl")
    pytest.importorskip("ray")
    result = start(VERL_NPU_STRICT="1", MIXED="1")
    assert result.returncode == 0, result.stderr
    (refused,), _ = eval(result.stdout.splitlines()[-1])
    assert "expected the same patches in all 4 processes" in refused
    assert "feature device" in refused
    assert "disabled in Worker" in refused


@pytest.mark.upstream
def test_without_strict_a_mixed_fleet_is_reported_and_trains() -> None:
    pytest.importorskip("verl")
    pytest.importorskip("ray")
    result = start(MIXED="1")
    assert result.returncode == 0, result.stderr
    reached, _ = eval(result.stdout.splitlines()[-1])
    assert reached == ["upstream's fit"]
