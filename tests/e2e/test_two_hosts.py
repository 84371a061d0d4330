"""One job over two hosts: network namespaces with a network, a Ray folder and two virtual NPUs of their own each."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .conftest import Smoke

NUMBER = os.getpid() % 10000
HOSTS = {f"vn{NUMBER}a": "10.77.0.1", f"vn{NUMBER}b": "10.77.0.2"}
HEAD, OTHER = HOSTS
PORT = 6399
# Unix sockets cross network namespaces: with one folder for them, Ray takes the hosts for one.
OWN_FOLDER = 'mount --make-rprivate / && mount -t tmpfs none "$0" && exec "$@"'
MICRO = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
)


def ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def network() -> Iterator[None]:
    if shutil.which("ip") is None or shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("two hosts need root, and iproute2 and util-linux from Debian")
    try:
        for host in HOSTS:
            made = ip("netns", "add", host)
            if made.returncode:
                pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
        steps = [ip("link", "add", HEAD, "type", "veth", "peer", "name", OTHER)]
        for host, address in HOSTS.items():
            steps.append(ip("link", "set", host, "netns", host))
            steps.append(ip("-n", host, "addr", "add", f"{address}/24", "dev", host))
            steps += [ip("-n", host, "link", "set", device, "up") for device in (host, "lo")]
        assert [step.stderr for step in steps if step.returncode] == []
        yield
    finally:
        for host in HOSTS:
            end(host)
            ip("netns", "del", host)


def end(host: str) -> None:
    """End every process of a host."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in ip("netns", "pids", host).stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), number)
        time.sleep(2)


def join(host: str, log: Path, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    """Start Ray on a host and wait until it is up."""
    ray = Path(sys.executable).with_name("ray")
    resources = json.dumps({"NPU": 2})  # `ray start` imports no torch, so it finds no virtual NPUs by itself
    command = ["ip", "netns", "exec", host, *before, str(ray), "start", "--block", "--num-cpus=16"]
    command += [f"--node-ip-address={HOSTS[host]}", f"--resources={resources}", "--disable-usage-stats", *arguments]
    command += ["--object-store-memory=300000000"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_NPU_M", "RAY_"))}
    environment |= {"VIRTUAL_ASCEND": "2", "RAY_prestart_worker_first_driver": "0"}
    environment |= {"GLOO_SOCKET_IFNAME": host, "HCCL_SOCKET_IFNAME": f"={host}"}
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    ends = time.monotonic() + 120
    while "Ray runtime started" not in log.read_text():
        if process.poll() is not None or time.monotonic() > ends:
            pytest.fail(f"{host} is not up: {log.read_text()[-3000:]}")
        time.sleep(0.5)
    return process


@pytest.mark.e2e
@pytest.mark.virtual
@pytest.mark.upstream
@pytest.mark.nightly("verl_npu/features/fleet", "verl_npu/features/device")
def test_the_same_job_trains_over_the_npus_of_two_hosts(network: None, smoke: Smoke, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="vn-") as folder:
        own = ("unshare", "-m", "sh", "-c", OWN_FOLDER, folder)
        head = ("--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}")
        started = [
            join(HEAD, tmp_path / "head.log", *head),
            join(OTHER, tmp_path / "other.log", f"--address={HOSTS[HEAD]}:{PORT}", before=own),
        ]
        answer = smoke(
            steps=2,
            before=("ip", "netns", "exec", HEAD),
            settings=[
                "trainer.nnodes=2",
                f"++ray_kwargs.ray_init.address={HOSTS[HEAD]}:{PORT}",
                "ray_kwargs.ray_init.num_cpus=null",
                *(f"{setting}=32" for setting in MICRO),
            ],
            GLOO_SOCKET_IFNAME=HEAD,
            HCCL_SOCKET_IFNAME=f"={HEAD}",
        )
        for host, process in zip(HOSTS, started, strict=True):
            end(host)
            process.wait(timeout=60)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    log = max(tmp_path.glob("grpo-*/train.log")).read_text(errors="replace")
    assert "6 processes agree on what is patched" in log
    assert all(f"ip={address}" in log for address in list(HOSTS.values())[1:])
    result = json.loads((tmp_path / "smoke.json").read_text())
    assert sorted(name.partition(":")[0] for name in result["features"]) == [
        "TaskRunner",
        *["WorkerDict"] * 4,
        "driver",
    ]
