"""What each kind of process of a real Ray job on virtual NPUs detects, at each pin, with verl-npu and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.testing import free_port

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

PROGRAM = Path(__file__).with_name("verdict_program.py")
PINS = ("796871d7", "v0.6.1", "ccd7d934", "v0.7.1", "v0.9.1")
NIGHTLY = pytest.mark.nightly("verl_npu/activation.py", "verl_npu/features/device")
GAPS = {"VIRTUAL_ASCEND": "4", "ASCEND_RT_VISIBLE_DEVICES": "1,3"}
"""Settings with which workers have to find their own NPU in a list with gaps."""
BLIND = ("TaskRunner", "AgentLoopWorker", "vLLMHttpServer")
WORKERS = ("worker 0", "worker 1")
# Without it, a newer Ray does not hide the NPUs from an actor that asks for none; 2.46 always hides them.
HIDES = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
NOSET = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"

# What upstream does by itself at a pin in a process from which Ray hides the NPUs, and the resource that its pools
# then ask for.
UPSTREAM = {
    "796871d7": ("cpu", "raises", ["CPU", "GPU"]),
    "v0.6.1": ("cpu", "nccl", ["CPU", "GPU"]),
    "ccd7d934": ("cpu", "nccl", ["CPU", "GPU"]),
    "v0.7.1": ("cpu", "nccl", ["CPU", "GPU"]),
    "v0.9.1": ("npu", "hccl", ["CPU", "NPU"]),
}


def environment(verl: Path, **changes: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_NPU", "ASCEND_", "RAY_"))}
    # Reuse the device that the tests before this one have compiled.
    inherited |= {k: v for k, v in os.environ.items() if k == "VIRTUAL_ASCEND_CACHE"}
    path = os.pathsep.join([str(verl), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"VIRTUAL_ASCEND": "2", "RAY_USAGE_STATS_ENABLED": "0", HIDES: "1", "PYTHONPATH": path}
    # The newest Ray asks even clients on this machine for a token.
    settings["RAY_AUTH_MODE"] = "disabled"
    return {**inherited, **settings, **changes}


def start(verl: Path, cwd: Path, **changes: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        env=environment(verl, **changes),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(output: str, verl: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the job and the table of its processes; print the table to the test's output."""
    (line,) = [line for line in output.splitlines() if line.startswith('{"job"')]
    found = json.loads(line)
    assert Path(found["job"]["verl"]).is_relative_to(verl)
    print(found["job"])
    for process, row in found["table"].items():
        print(f"{process:16} {row}")
    return found["job"], found["table"]


def outcome(process: subprocess.Popen[str], verl: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    try:
        output, errors = process.communicate(timeout=400)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-3000:]
    return answer(output, verl)


Verl = Callable[[str], Path]


@pytest.fixture
def verl(importable: Verl) -> Verl:
    pytest.importorskip("ray")
    return importable


def check_verdicts(job: dict[str, Any], table: dict[str, dict[str, Any]], visible: list[str]) -> None:
    assert job["setting"] == "npu"
    assert job["asked"] == [["CPU", "NPU"]]
    assert list(table) == ["driver", *BLIND, *WORKERS]
    for process, row in table.items():
        assert (row["device"], row["backend"], row["npu"], row["cuda"]) == ("npu", "hccl", [True], False), process
        assert row["resource"] in ("NPU", None)  # None: the pin does not ask for a resource
        assert row["keyword"] == "ASCEND_RT_VISIBLE_DEVICES"
    assert sorted(table[name]["visible"] for name in WORKERS) == visible
    assert {table[name]["computes on"] for name in WORKERS} == {"npu:0"}


# packages/verl-npu-workbench/tests/e2e/test_grpo.py runs this job every day.
@NIGHTLY
@pytest.mark.parametrize("pin", PINS)
def test_with_verl_npu_every_process_comes_to_the_same_verdict(pin: str, verl: Verl, tmp_path: Path) -> None:
    job, table = outcome(start(verl(pin), tmp_path, **GAPS), verl(pin))
    check_verdicts(job, table, ["1", "3"])
    assert [table[name]["visible"] for name in BLIND] == [""] * 3


@NIGHTLY
def test_the_verdict_is_the_same_where_ray_hides_nothing_from_those_without_npus(verl: Verl, tmp_path: Path) -> None:
    job, table = outcome(start(verl("v0.6.1"), tmp_path, **{HIDES: "0"}), verl("v0.6.1"))
    check_verdicts(job, table, ["0", "1"])


@NIGHTLY
@pytest.mark.parametrize("pin", PINS)
def test_without_it_the_known_faults_are_there(pin: str, verl: Verl, tmp_path: Path) -> None:
    job, table = outcome(start(verl(pin), tmp_path, VERL_NPU="off", PLACEMENT_SECONDS="10"), verl(pin))
    device, backend, asked = UPSTREAM[pin]
    assert job["setting"] == "cuda"
    for process in BLIND:
        row = table[process]
        # Ray hides the NPUs from them, which is why the constant is patched.
        assert (row["visible"], row["device"], row["npu"]) == ("", device, [False]), process
        assert row["backend"].startswith(backend), process
    assert (table["driver"]["device"], table["driver"]["backend"]) == ("npu", "hccl")
    assert job["asked"] == [asked]
    if "GPU" in asked:
        # Worker 0 does not exist: upstream waits for ever.
        assert table["worker 0"] == {"waits": True}


@NIGHTLY
def test_workers_find_their_own_npu_where_ray_hides_none(verl: Verl, tmp_path: Path) -> None:
    _, table = outcome(start(verl("v0.6.1"), tmp_path, **GAPS, **{NOSET: "1"}), verl("v0.6.1"))
    assert [table[name]["visible"] for name in WORKERS] == ["1,3"] * 2
    assert sorted(table[name]["computes on"] for name in WORKERS) == ["npu:0", "npu:1"]


@NIGHTLY
def test_without_verl_npu_workers_do_not_find_their_npu(verl: Verl, tmp_path: Path) -> None:
    # At v0.9.1 the pools ask for NPUs by themselves, so that the workers are made at all.
    changes = {NOSET: "1", "VERL_NPU": "off"}
    _, table = outcome(start(verl("v0.9.1"), tmp_path, **GAPS, **changes), verl("v0.9.1"))
    assert "invalid device ordinal 3" in table["worker 0"]["raises"]


@contextmanager
def cluster(verl: Path, **changes: str) -> Iterator[tuple[str, str]]:
    """Start a Ray cluster that outlives its jobs; yield the addresses for drivers and for `ray job submit`."""
    port, dashboard = free_port(), free_port()
    ray = Path(sys.executable).with_name("ray")
    # `ray start` does not import torch, so it finds no virtual NPUs by itself.
    npus = json.dumps({"NPU": int(changes["VIRTUAL_ASCEND"])})
    command = [str(ray), "start", "--head", "--block", "--num-cpus=24", "--disable-usage-stats", f"--resources={npus}"]
    # All ports are chosen here, so that somebody else's cluster on this machine is not in the way.
    command += [f"--port={port}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={free_port()}"]
    command += [f"--dashboard-agent-listen-port={free_port()}", f"--dashboard-agent-grpc-port={free_port()}"]
    # Ray puts sockets there, whose paths may have at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="vn-") as folder:
        environ = environment(verl, **changes)
        head = subprocess.Popen([*command, f"--temp-dir={folder}"], env=environ, stdout=subprocess.DEVNULL)
        try:
            wait_for(dashboard, head)
            yield f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}"
        finally:
            head.terminate()
            head.wait(timeout=60)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + 200
    while time.monotonic() < ends and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/api/version", timeout=5):
            return
        time.sleep(1)
    pytest.fail(f"the cluster is not up, its status is {process.poll()}")


def submit(dashboard: str, environ: dict[str, str], cwd: Path) -> str:
    """Submit a job to a cluster and return its output."""
    command = [str(Path(sys.executable).with_name("ray")), "job", "submit", f"--address={dashboard}"]
    ends = time.monotonic() + 200
    while True:
        result = subprocess.run(
            [*command, "--", sys.executable, str(PROGRAM)],
            env=environ,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        # The agent that accepts jobs comes up some time after the cluster.
        if "No available agent" not in result.stderr or time.monotonic() > ends:
            break
        time.sleep(2)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    return result.stdout


@NIGHTLY
def test_jobs_of_one_cluster_have_npus_of_their_own(verl: Verl, tmp_path: Path) -> None:
    # One job runs by itself; the driver of the other, which is submitted, runs where Ray decides and sees no NPU.
    source = verl("v0.6.1")
    with cluster(source, VIRTUAL_ASCEND="4", **{NOSET: "1"}) as (address, dashboard):
        ended = tmp_path / "ended"
        settings = {"VIRTUAL_ASCEND": "4", "RAY_ADDRESS": address, "HOLD_UNTIL": str(ended), NOSET: "1"}
        own = start(source, tmp_path, **settings)
        handed_in = submit(dashboard, environment(source, VIRTUAL_ASCEND="4"), tmp_path)
        ended.touch()
        tables = [outcome(own, source), answer(handed_in, source)]
    for job, table in tables:
        assert job["setting"] == "npu"
        assert list(table) == ["driver", *BLIND, *WORKERS], table["worker 0"]
        assert {row["device"] for row in table.values()} == {"npu"}
        assert {row["backend"] for row in table.values()} == {"hccl"}
    used = [table[name]["computes on"] for _, table in tables for name in WORKERS]
    assert sorted(used) == ["npu:0", "npu:1", "npu:2", "npu:3"]
