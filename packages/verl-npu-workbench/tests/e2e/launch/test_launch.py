"""Launches over several hosts: the end on every host, the messages, and what is left behind."""

from __future__ import annotations

import signal

import pytest

from .conftest import Start

pytestmark = [pytest.mark.e2e, pytest.mark.virtual, pytest.mark.nightly]
CHANGED = pytest.mark.nightly(
    "verl_npu_workbench/launch",
    "verl_npu_workbench/processes.py",
    "verl_npu/features/fleet",
)
FOREVER = ("--forever",)


@CHANGED
@pytest.mark.parametrize("start", [4], indirect=True, ids=["four hosts"])
@pytest.mark.parametrize("status", [0, 7])
def test_a_job_runs_on_four_hosts_with_the_variables_of_each(start: Start, status: int) -> None:
    launch = start(job=("--status", str(status)))
    launch.ends(*[status] * 4)
    said = launch.text("h0")
    assert "driver: visible all" in said
    for host in launch.hosts:
        own = f"HCCL_SOCKET_IFNAME==net0, GLOO_SOCKET_IFNAME=net0, HCCL_IF_IP={host.address}, HCCL_EXEC_TIMEOUT=3600"
        assert f"{host.name}: {own}" in said


@pytest.mark.parametrize("start", [3], indirect=True, ids=["three hosts"])
def test_a_host_that_does_not_come_is_named(start: Start) -> None:
    launch = start("--hosts", "h0,h1,h2", "--wait", "15", on=2)
    launch.ends(2, 2)
    assert "h1 (10.78.0.2, 2 NPUs); missing: h2" in launch.text("h0")
    assert "driver" not in launch.text("h0")


@CHANGED
def test_a_host_that_refuses_is_named_before_the_job(start: Start) -> None:
    launch = start(on=1)
    launch.join(launch.hosts[1], HCCL_IF_IP="10.78.0.1")
    launch.ends(2, 2)
    assert "the node h1 (10.78.0.2, 2 NPUs): expected to take part; found HCCL_IF_IP=10.78.0.1" in launch.text("h0")
    assert "driver" not in launch.text("h0")


def test_a_head_that_refuses_ends_the_others(start: Start) -> None:
    launch = start(on=0)
    launch.join(launch.hosts[0], HCCL_IF_IP="10.78.0.2")
    launch.join(launch.hosts[1])
    launch.ends(2, 2, within=60)
    assert "the head h0 (10.78.0.1, 2 NPUs) cannot take part: HCCL_IF_IP=10.78.0.2" in launch.text("h1")


def test_a_host_whose_ray_does_not_start_is_named_before_the_job(start: Start) -> None:
    launch = start(on=1)
    launch.join(launch.hosts[1], "--ray=--no-such-option")
    launch.ends(2, 2)
    assert "the node h1 (10.78.0.2, 2 NPUs): expected to take part; found Ray does not start" in launch.text("h0")


@CHANGED
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_on_the_head_ends_all_that_was_started(start: Start, number: int) -> None:
    launch = start(job=FOREVER)
    launch.works()
    launch.interrupt("h0", number)
    launch.ends(128 + number, 128 + number)


def test_a_signal_before_the_job_ends_all_that_was_started(start: Start) -> None:
    launch = start(job=FOREVER)
    launch.until(lambda: "2 of 2 nodes" in launch.text("h0"), "all nodes")
    launch.interrupt("h0")
    launch.ends(130, 130)


def test_a_signal_on_another_host_is_told_to_the_head(start: Start) -> None:
    launch = start(job=FOREVER)
    launch.works()
    launch.interrupt("h1")
    launch.ends(1, 130)
    assert "LOST: the node h1 (10.78.0.2, 2 NPUs): Ctrl-C there" in launch.text("h0")


@pytest.mark.parametrize(("number", "said"), [(1, "LOST: the node h1"), (0, "the head does not answer any more")])
def test_a_host_that_is_lost_ends_the_job(start: Start, number: int, said: str) -> None:
    launch = start(job=FOREVER)
    launch.works()
    launch.hosts[number].die()
    launch.processes.pop(f"h{number}").wait()
    launch.ends(1)
    assert said in launch.text(f"h{1 - number}")
