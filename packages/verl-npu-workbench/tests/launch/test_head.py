"""Too few nodes are an error that names the reason, and a spare one that is out is only said.

A job is stopped if a node that it uses is lost; a spare one that it does not use is only said.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from verl_npu_workbench.launch import head, store
from verl_npu_workbench.launch.head import gather, run_job
from verl_npu_workbench.launch.over_ssh import Remote
from verl_npu_workbench.launch.store import Member
from verl_npu_workbench.processes import Started as Process

from verl_npu.errors import LaunchError

from .stored import Clock, Stored, leader, member, node

Gather = Callable[..., store.Membership]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """All nodes that Ray has answer, and waiting takes no time."""
    monkeypatch.setattr(store, "answers", lambda address, port: True)
    clock = Clock()
    monkeypatch.setattr(head, "time", clock)
    return clock


@pytest.fixture
def gathered(said: list[str], tmp_path: Path, clock: Clock) -> Gather:
    """Gather two nodes and perhaps spare ones."""

    def call(
        store: Stored, spare: int = 0, patient: bool = False, remote: Sequence[Remote] = (), hosts: Sequence[str] = ()
    ) -> store.Membership:
        return gather(leader(store, said, 2, spare, tmp_path, clock, tuple(hosts)), remote, patient)

    return call


REFUSED = member("n3", "refused", "--interface eth7: expected an interface of this host")


def test_a_node_that_is_refused_ends_the_launch_with_its_reason(gathered: Gather) -> None:
    with pytest.raises(LaunchError, match=r"the node n3 \(10\.0\.0\.3\).*--interface eth7"):
        gathered(Stored([member("n1"), REFUSED], [node("n1")]), patient=True)


@pytest.mark.parametrize("out", [REFUSED, member("n3", "left", "Ctrl-C there")], ids=["refused", "left"])
def test_a_spare_node_that_is_out_is_said_once_and_not_waited_for(
    gathered: Gather, said: list[str], out: Member
) -> None:
    members = gathered(Stored([member("n1"), member("n2"), out], [node("n1"), node("n2")]), spare=1)
    assert [*members.present] == ["n1", "n2"]
    assert [line for line in said if "n3" in line] == [
        f"WARNING: without the node n3 (10.0.0.3), as there are spare ones: {out.reason}"
    ]


def test_more_nodes_out_than_there_are_spare_ones_end_the_launch(gathered: Gather) -> None:
    members = [member("n1"), REFUSED, member("n4", "refused", "no NPUs")]
    with pytest.raises(LaunchError, match="n3"):
        gathered(Stored(members, [node("n1")]), spare=1)


def test_a_lost_node_may_come_back_where_there_is_patience(gathered: Gather) -> None:
    left = member("n3", "left", "Ctrl-C there")
    with pytest.raises(LaunchError, match="the nodes of this launch: expected 2 within 2 s"):
        gathered(Stored([member("n1"), left], [node("n1")]), patient=True)


def test_what_a_missing_host_printed_last_is_said_where_it_was_started_over_ssh(gathered: Gather) -> None:
    with tempfile.TemporaryFile() as output, subprocess.Popen(["sleep", "100"]) as process:
        output.write(b"launch: waiting for the head\n")
        remote = [Remote("10.0.0.2", Process(process, output))]
        with pytest.raises(LaunchError, match=r"missing: 10\.0\.0\.2 \(10\.0\.0\.2: launch: waiting for the head\)"):
            gathered(Stored([member("n1")], [node("n1")]), remote=remote, hosts=("10.0.0.1", "10.0.0.2"))
        process.kill()


NAMES = ("n1", "n2", "n3")


class Job:
    """A job that ends with 0 after some looks, of which the third loses nodes; with 9 if it is stopped."""

    def __init__(self, store: Stored, lost: set[str], looks: int = 8) -> None:
        self.store, self.lost, self.looks, self.stopped = store, lost, looks, False

    def submit_job(self, *, entrypoint: str, submission_id: str) -> str:
        return submission_id

    def get_job_info(self, job_id: str) -> SimpleNamespace:
        self.looks -= 1
        if self.looks == 5:
            self.store.there = [node(name, name not in self.lost) for name in NAMES]
        ended = self.looks <= 0 or self.stopped
        status = ("STOPPED" if self.stopped else "SUCCEEDED") if ended else "RUNNING"
        return SimpleNamespace(status=status, message="", driver_exit_code=9 * self.stopped if ended else None)

    def stop_job(self, job_id: str) -> bool:
        self.stopped = True
        return True


Ran = tuple[int, list[str], list[str]]


@pytest.fixture
def run(tmp_path: Path, clock: Clock) -> Callable[..., Ran]:
    """Run a job for two nodes on three; return its status, the names of those that were lost, and what was said."""

    def call(used: set[str], lost: set[str], nodes: tuple[str, ...] = NAMES) -> Ran:
        store = Stored([member(name) for name in NAMES], [node(name) for name in NAMES], used)
        said: list[str] = []
        ended, losses = run_job(leader(store, said, 2, 1, tmp_path, clock), Job(store, lost), 0, nodes)
        return ended.status, [each.name for each in losses], said

    return call


def test_a_spare_node_that_the_job_does_not_use_is_only_said(run: Callable[..., Ran]) -> None:
    status, lost, said = run(used={"n1", "n2"}, lost={"n3"})
    assert (status, lost) == (0, ["n3"])
    (line,) = [line for line in said if "LOST" in line]
    assert line.startswith("LOST: the node n3 (10.0.0.3): ")
    assert line.endswith("; the job does not use it, and goes on")


@pytest.mark.parametrize(
    ("used", "lost"), [({"n1", "n3"}, {"n3"}), (set(), {"n2", "n3"})], ids=["a used one", "too many"]
)
def test_the_loss_of_a_node_that_it_needs_stops_it(run: Callable[..., Ran], used: set[str], lost: set[str]) -> None:
    status, names, said = run(used=used, lost=lost)
    assert (status, {*names}) == (9, lost)
    assert any("is stopped" in line for line in said)
    assert not any(line.endswith("goes on") for line in said if "n3" in line)


def test_a_spare_node_that_came_while_the_job_runs_counts(run: Callable[..., Ran]) -> None:
    assert run(used={"n1", "n3"}, lost={"n2"}, nodes=("n1", "n2"))[0] == 0
    assert run(used={"n1", "n3"}, lost={"n3"}, nodes=("n1", "n2"))[:2] == (9, ["n3"])
