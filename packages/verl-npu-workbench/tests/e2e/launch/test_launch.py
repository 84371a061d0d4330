"""Launches over four hosts: how each ends on every host, what is said, and what is left."""

from __future__ import annotations

import re
import signal
import sys
import time

import pytest

from .conftest import GRACE, Site

pytestmark = [pytest.mark.e2e, pytest.mark.virtual, pytest.mark.nightly]

FOREVER = ("--rounds", "100000")
SLACK = 60
"""Seconds for Ray to end on a busy machine."""


# All goes well.


@pytest.mark.nightly(
    "verl_npu_workbench/launch",
    "verl_npu_workbench/processes.py",
)
def test_a_job_runs_on_four_hosts(site: Site) -> None:
    launch = site.launch(on=4)
    site.ends(launch, [0, 0, 0, 0], 300, "four hosts")
    assert "driver: done on h0, h1, h2, h3" in launch.text(site.hosts[0])
    assert "driver: from round 0, visible all" in launch.text(site.hosts[0])


def test_a_late_host_is_waited_for_by_name(site: Site) -> None:
    h0, h1, _, _ = site.hosts
    options = ("--hosts", "h0,h1")
    launch = site.launch(*options, start=1)
    launch.await_text(h0, "1 of 2 nodes .*missing: h1")
    site.join(launch, h1, *options)
    site.ends(launch, [0, 0], 300, "a host comes late")


def test_one_command_starts_all_hosts_over_ssh(site: Site, ssh: str) -> None:
    launch = site.launch("--hosts", "h0,h1", "--ssh", start=1, job=("--status", "3"), PATH=ssh)
    site.ends(launch, [3], 300, "over ssh, the job ends with 3")
    assert "driver: done on h0, h1" in launch.text(site.hosts[0])


# Nodes that are missing, or lost.


def test_a_host_that_never_comes_is_named(site: Site) -> None:
    launch = site.launch("--hosts", "h0,h1,h2", "--wait", "15", on=3, start=2)
    site.ends(launch, [2, 2], 15 + SLACK, "a host never comes (--wait 15)")
    assert "missing: h2" in launch.text(site.hosts[0])


def test_a_host_that_dies_before_the_job_ends_the_launch(site: Site) -> None:
    h0, h1, _, _ = site.hosts
    launch = site.launch(on=3, start=2)
    launch.await_text(h0, r"2 of 3 nodes")
    site.kill(launch, h1)
    site.ends(launch, [2], GRACE + SLACK, "a host dies before the job")
    assert "the node h1 (10.78.0.2)" in launch.text(h0)


def test_a_host_that_is_refused_ends_the_wait_of_the_head_by_name(site: Site) -> None:
    h0, h1, _, _ = site.hosts
    options = ("--wait", "280")
    launch = site.launch(*options, start=1)
    launch.await_text(h0, "1 of 2 nodes")
    site.join(launch, h1, *options, "--interface", "eth7")
    site.ends(launch, [2, 2], SLACK, "a host is refused by itself (--interface eth7), and tells the head")
    assert "the node h1 (10.78.0.2): expected to take part, found --interface eth7" in launch.text(h0)


@pytest.mark.nightly(
    "verl_npu_workbench/launch",
    "verl_npu_workbench/processes.py",
)
@pytest.mark.parametrize("job", [(), ("--hang",)], ids=["the job ends", "the job hangs"])
def test_a_host_that_dies_in_the_job_is_named_with_its_last_lines(site: Site, job: tuple[str, ...]) -> None:
    h0, h1, _, _ = site.hosts
    launch = site.launch(on=3, job=(*FOREVER, *job))
    launch.await_file("round-2")
    site.kill(launch, h1)
    launch.statuses()
    status = launch.processes["h0"].returncode
    assert status not in (0, None)
    site.ends(launch, [status, status], 2 * GRACE + SLACK, f"a host dies in the job{', which hangs' * bool(job)}")
    said = launch.text(h0)
    assert "LOST: the node h1 (10.78.0.2)" in said
    assert re.search(r"h1: .*rank \d round \d", said)
    assert ("is stopped" in said) == bool(job)


def test_a_host_whose_network_is_gone_is_lost(site: Site) -> None:
    h0, h1, _, _ = site.hosts
    launch = site.launch(job=(*FOREVER, "--hang"))
    launch.await_file("round-2")
    h1.unplug()
    found = launch.statuses()
    print(f"| a host's network is cut | {' '.join(map(str, found))} | {launch.seconds:.0f} | {len(site.left())} |")
    assert found[0] not in (0, None)
    assert found[1] == 1
    assert "LOST: the node h1" in launch.text(h0)
    assert f"has not answered for {GRACE} s" in launch.text(h1)
    assert site.left() == []


def test_a_job_goes_on_from_its_last_whole_checkpoint(site: Site) -> None:
    h0, h1, _, _ = site.hosts
    job = ("--rounds", "4", "--save", "2")
    launch = site.launch("--restarts", "1", job=job)
    launch.await_file("checkpoint")
    (launch.folder / "saving").unlink(missing_ok=True)
    launch.await_file("saving")
    site.kill(launch, h1)
    (launch.folder / "h1.log").rename(launch.folder / "before.log")
    launch.await_text(h0, "restart 1 of 1")
    site.join(launch, h1, "--restarts", "1", job=job)
    launch.statuses()
    said = launch.text(h0)
    starts = [int(number) for number in re.findall(r"driver: from round (\d+)", said)]
    assert len(starts) == 2
    assert starts[0] == 0 < starts[1]
    site.ends(launch, [0, 0], 300, "a host dies while the head saves; --restarts 1, and it comes back")


def test_a_spare_host_takes_the_place_of_a_lost_one(site: Site) -> None:
    h0, h1, h2, _ = site.hosts
    options = ("--nodes", "2", "--head", "h0", "--spare", "1", "--restarts", "1")
    launch = site.launch(*options, start=2, job=("--rounds", "60", "--hang"))
    launch.await_file("round-2")
    site.join(launch, h2, *options, job=("--rounds", "60", "--hang"))
    launch.await_that(lambda: "joining" in launch.text(h2), "the spare host")
    site.kill(launch, h1)
    launch.statuses()
    site.ends(launch, [0, 0], 300, "a host dies in the job, which hangs, and a spare one takes its place")
    said = launch.text(h0)
    assert "is stopped" in said
    assert len(re.findall(r"driver: from round (\d+)", said)) == 2
    assert "driver: done on h0, h2" in said


def test_the_job_goes_on_when_a_spare_host_dies_that_it_does_not_use(site: Site) -> None:
    h0, _, h2, _ = site.hosts
    options, job = ("--nodes", "2", "--head", "h0", "--spare", "1"), ("--rounds", "60")
    launch = site.launch(*options, job=job)
    # The job asks for two NPUs of a host.
    site.join(launch, h2, *options, job=job, VIRTUAL_ASCEND="1")
    launch.await_file("round-2")
    site.kill(launch, h2)
    site.ends(launch, [0, 0], 300, "a spare host dies that the job does not use")
    assert re.search(r"LOST: the node h2 \(10\.78\.0\.3\): .*; the job does not use it, and goes on", launch.text(h0))


def test_a_head_that_dies_ends_the_others(site: Site) -> None:
    h0, h1, _, _ = site.hosts
    launch = site.launch(on=3, job=FOREVER)
    launch.await_file("round-2")
    site.kill(launch, h0)
    site.ends(launch, [1, 1], GRACE + SLACK, "the head dies")
    assert f"has not answered for {GRACE} s" in launch.text(h1)


# The user ends it.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_on_the_head_while_it_waits(site: Site, number: int) -> None:
    h0 = site.hosts[0]
    launch = site.launch(on=3, start=2)
    launch.await_text(h0, "2 of 3 nodes")
    launch.interrupt(h0, number)
    site.ends(launch, [128 + number] * 2, SLACK, f"{signal.Signals(number).name} on the head while it waits")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_on_the_head_in_the_job(site: Site, number: int) -> None:
    launch = site.launch(job=FOREVER)
    launch.await_file("round-2")
    launch.interrupt(site.hosts[0], number)
    site.ends(launch, [128 + number] * 2, SLACK, f"{signal.Signals(number).name} on the head in the job")


def test_a_signal_while_ray_starts(site: Site) -> None:
    h0 = site.hosts[0]
    launch = site.launch(start=1)
    launch.await_text(h0, "starting Ray")
    time.sleep(1)
    launch.interrupt(h0)
    site.ends(launch, [130], SLACK, "SIGINT on the head while Ray starts")


def test_a_signal_while_a_node_waits_for_the_head(site: Site) -> None:
    h1 = site.hosts[1]
    launch = site.launch(start=0)
    site.join(launch, h1)
    launch.await_text(h1, "waiting for the head")
    launch.interrupt(h1)
    site.ends(launch, [130], SLACK, "SIGINT on a node that waits for the head")


def test_a_signal_on_another_node_in_the_job(site: Site) -> None:
    h0, h1, _, _ = site.hosts
    launch = site.launch(job=FOREVER)
    launch.await_file("round-2")
    launch.interrupt(h1)
    site.ends(launch, [1, 130], GRACE + SLACK, "SIGINT on another node in the job")
    assert "LOST: the node h1 (10.78.0.2): Ctrl-C there" in launch.text(h0)


def test_a_launch_that_is_killed_leaves_nothing(site: Site) -> None:
    h0, h1, _, _ = site.hosts
    launch = site.launch(job=FOREVER)
    launch.await_file("round-2")
    launch.interrupt(h1, signal.SIGKILL)
    launch.statuses()
    status = launch.processes["h0"].returncode
    site.ends(launch, [status, -9], GRACE + SLACK, "the launch of another node is killed (SIGKILL)")
    assert status not in (0, None)
    assert "LOST: the node h1" in launch.text(h0)


# Two at once, and what is refused before anything is started.


def test_two_launches_on_the_same_hosts_do_not_meet(site: Site) -> None:
    first = site.launch(job=FOREVER)
    first.await_file("round-2")
    second = site.launch("--port", "6800", job=("--status", "5"))
    assert second.statuses() == [5, 5], second.everything()
    rounds = len([*first.folder.glob("round-*")])
    first.await_that(lambda: len([*first.folder.glob("round-*")]) > rounds + 2, "the first one to go on")
    first.interrupt(site.hosts[0])
    site.ends(first, [130, 130], SLACK, "two jobs at once: the second ends with 5, the first goes on until SIGINT")


def test_a_second_launch_at_the_same_port_is_refused(site: Site) -> None:
    first = site.launch(job=FOREVER)
    first.await_file("round-2")
    second = site.launch(job=("--status", "5"))
    found = second.statuses()
    assert found == [2, 2], second.everything()
    assert "port 6766 of this host: expected a free port for Ray" in second.text(site.hosts[0])
    assert "another --port" in second.text(site.hosts[1])
    print(f"| a port that is taken | {' '.join(map(str, found))} | {second.seconds:.0f} | - |")
    first.interrupt(site.hosts[0])
    site.ends(first, [130, 130], SLACK, "the launch that has the port, until SIGINT")


def test_an_interface_that_is_not_there_is_refused(site: Site) -> None:
    # The other host tries to tell the head, which is refused as well.
    launch = site.launch("--interface", "eth7", "--wait", "5", command=(sys.executable, "-c", "0"))
    site.ends(launch, [2, 2], SLACK, "an interface named wrongly (--interface eth7)")
    said = launch.text(site.hosts[0]).strip()
    assert "eth7" in said
    assert "net0" in said
    assert "\n" not in said
