"""The comparison of a job's processes, also over a real Ray."""

from __future__ import annotations

import copy
import json
import re

import pytest
from testing.interpreter import python

from verl_npu.errors import FleetError
from verl_npu.features.fleet import comparison
from verl_npu.features.fleet.comparison import differences
from verl_npu.features.fleet.manifests import Reading

MANIFEST = {
    "host": "h",
    "pid": 1,
    "token": "t",
    "role": "driver",
    "version": "1",
    "simulated": True,
    "upstreams": {"verl": {"nearest_pin": "v0.6.1", "exact": True, "differs": []}},
    "features": {"device": {"owner": "", "state": "applied"}, "attention": {"owner": "", "state": "pending"}},
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


def test_what_upstream_has_patched_and_what_it_is_still_to_patch_agree() -> None:
    native = process(2, features__attention__state="native")
    lost = process(4, features__attention__state="failed")
    (line,) = differences([native, lost])
    assert "native in WorkerDict h:2" in line
    assert "failed in WorkerDict h:4" in line


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"features__device__state": "drifted"}, "feature device"),
        ({"features__device__state": "off"}, "feature device"),
        ({"features__device__state": "overwritten"}, "feature device"),
        ({"features": {"device": {"owner": "", "state": "applied"}}}, "feature attention"),
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
    """Return a function that compares the processes of a reading and returns what it reports on stderr."""

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
import json, os, ray
import verl

# An entry point with an environment of its own.
ray.init(num_cpus=4, resources={"NPU": 5}, include_dashboard=False, log_to_driver=False,
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

@ray.remote(num_cpus=0.5)
class Runner:
    def run(self):
        import verl.utils.tracking as tracking
        from verl_npu.errors import FleetError
        from verl_npu.features.fleet.manifests import published
        reading = published()
        try:
            tracking.Tracking("project", "experiment")
            reached = "upstream's logger"
        except FleetError as error:
            reached = f"refused: {error}"
        roles = sorted(manifest["role"] for manifest in reading.manifests)
        return {"reached": reached, "roles": roles, "missing": list(reading.missing), "why": reading.unreadable}

workers = []
def start(*asked):
    workers.extend(
        ray.remote(kind).options(num_cpus=0.5, resources={"NPU": 1}, runtime_env={"env_vars": change}).remote()
        for kind, change in asked
    )
    looked = ray.get([worker.look.remote() for worker in workers[-len(asked):]])
    return {"looked": looked, **ray.get(Runner.remote().run.remote())}

alike = start((Importing, {}), (Importing, {}))
mixed = start((Importing, {"VERL_NPU_DISABLE": "device"}), (Worker, {"VERL_NPU": "off"}))
print("FACTS " + json.dumps([alike, mixed]), flush=True)
ray.shutdown()
"""


@pytest.mark.nightly("verl_npu/features/fleet")
@pytest.mark.upstream
def test_in_a_real_ray_job_under_strict_alike_processes_train_and_others_do_not() -> None:
    pytest.importorskip("verl")
    pytest.importorskip("ray")
    own = {"VERL_NPU": "on", "VERL_NPU_STRICT": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = python("-c", PROGRAM, clean=("VERL_NPU", "RAY_"), **own)
    assert done.returncode == 0, done.stderr
    alike, mixed = json.loads(done.stdout.rpartition("FACTS ")[2])
    roles = ["Importing", "Importing", "Runner", "driver"]
    looked = ["Importing", "Importing"]
    assert alike == {"looked": looked, "reached": "upstream's logger", "roles": roles, "missing": [], "why": ""}
    assert mixed["looked"] == ["Importing", "true"]
    (silent,) = mixed["missing"]
    assert silent.startswith("Worker ")
    for words in ("expected the same patches in all", "feature device", "disabled in Importing", silent):
        assert words in mixed["reached"]
