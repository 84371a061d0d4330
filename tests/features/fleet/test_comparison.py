"""The processes of a job compared, and the comparison over a real Ray."""

from __future__ import annotations

import ast
import copy
import os
import re
import subprocess
import sys

import pytest

from verl_npu import reporting
from verl_npu.errors import FleetError
from verl_npu.features.fleet import comparison
from verl_npu.features.fleet.comparison import differences
from verl_npu.features.fleet.reading import Reading

MANIFEST = {
    "host": "h",
    "pid": 1,
    "token": "t",
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
    assert lines == ["version of the plugin: 1 in WorkerDict h:2 (container a); 2 in WorkerDict h:2 (container b)"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Compare what a process has read, and return what is said of it."""
    monkeypatch.setattr(reporting, "_said", set())

    def compare(**reading) -> str:
        made = Reading(**{"manifests": [process(1), process(2)], **reading})
        monkeypatch.setattr(comparison, "published", lambda: made)
        comparison.compare()
        return capsys.readouterr().err

    return compare


UNKNOWN = [
    ({"missing": ["rank 3", "WorkerDict 10.0.0.2:7"]}, "probably not active: rank 3, WorkerDict 10.0.0.2:7"),
    ({"unreadable": "RuntimeError: gone"}, "cannot be read (RuntimeError: gone)"),
]


@pytest.mark.parametrize(("reading", "named"), UNKNOWN)
def test_a_process_whose_manifest_is_missing_is_named(reads, reading, named: str) -> None:
    assert named in reads(**reading)


@pytest.mark.parametrize(("reading", "named"), UNKNOWN)
def test_under_strict_a_missing_manifest_is_an_error(
    reads, reading, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_NPU_STRICT", "1")
    with pytest.raises(FleetError, match=re.escape(named)):
        reads(**reading)


def test_processes_that_agree_are_counted(reads) -> None:
    assert "2 processes agree on what is patched" in reads()


PROGRAM = """
import os, ray
import verl

# An entry point with an environment of its own.
ray.init(num_cpus=4, resources={"NPU": 3}, include_dashboard=False, log_to_driver=False,
         runtime_env={"env_vars": {"TOKENIZERS_PARALLELISM": "true"}})

class Worker:
    def look(self):
        return os.environ.get("TOKENIZERS_PARALLELISM")

class Importing(Worker):
    def look(self):
        import verl.single_controller.ray.base
        import verl_npu
        return verl_npu.status()["role"]

# What Ray knows of the worker of upstream, whose process has no manifest.
Worker.__module__ = "verl.workers.fsdp_workers"

@ray.remote
class Runner:
    def run(self):
        import verl.utils.tracking as tracking
        from verl_npu.errors import FleetError
        from verl_npu.features.fleet.publication import published
        try:
            tracking.Tracking("project", "experiment")
            reached = "upstream's logger"
        except FleetError as error:
            reached = f"refused: {error}"
        reading = published()
        return reached, [m["role"] for m in reading.manifests], list(reading.missing), reading.unreadable

changes = {
    "alike": [(Importing, {}), (Importing, {})],
    "mixed": [(Importing, {}), (Importing, {"VERL_NPU_DISABLE": "device"})],
    "silent": [(Importing, {}), (Worker, {"VERL_NPU": "off"})],
}[os.environ["JOB"]]
workers = [
    ray.remote(kind).options(resources={"NPU": 1}, runtime_env={"env_vars": change}).remote()
    for kind, change in changes
]
print(ray.get([worker.look.remote() for worker in workers]))
print(ray.get(Runner.remote().run.remote()))
ray.shutdown()
"""


def start(job: str, **environment: str) -> tuple[list[str], tuple[str, list[str], list[str], str]]:
    pytest.importorskip("verl")
    pytest.importorskip("ray")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_NPU", "RAY_"))}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**inherited, "VERL_NPU": "on", "RAY_USAGE_STATS_ENABLED": "0", "JOB": job, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    looked, reached = map(ast.literal_eval, result.stdout.splitlines()[-2:])
    return looked, reached


@pytest.mark.upstream
def test_in_a_real_ray_job_every_manifest_reaches_the_trainer() -> None:
    looked, (reached, roles, missing, unreadable) = start("alike", VERL_NPU_STRICT="1")
    assert looked == ["Importing", "Importing"]
    assert reached == "upstream's logger"
    assert sorted(roles) == ["Importing", "Importing", "Runner", "driver"]
    assert (missing, unreadable) == ([], "")


@pytest.mark.upstream
def test_strict_refuses_to_train_with_a_mixed_fleet() -> None:
    _, (refused, *_) = start("mixed", VERL_NPU_STRICT="1")
    assert "expected the same patches in all 4 processes" in refused
    assert "feature device" in refused
    assert "disabled in Importing" in refused


@pytest.mark.upstream
def test_strict_refuses_to_train_with_a_worker_that_tells_nothing() -> None:
    looked, (refused, roles, missing, _) = start("silent", VERL_NPU_STRICT="1")
    assert looked == ["Importing", "true"]
    assert "Worker" not in roles
    assert [label.split()[0] for label in missing] == ["Worker"]
    assert "expected the same patches in all 4 processes" in refused
    assert missing[0] in refused


@pytest.mark.upstream
def test_without_strict_a_mixed_fleet_is_reported_and_trains() -> None:
    _, (reached, *_) = start("mixed")
    assert reached == "upstream's logger"
