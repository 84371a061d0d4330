"""Who takes part: too few is an error that names the reason, and a spare node that is out is only said."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from verl_npu.errors import LaunchError
from verl_npu.family import Member as Process
from verl_npu.launch import gathering, roll
from verl_npu.launch.gathering import gather
from verl_npu.launch.over_ssh import Remote

from .stored import Stored, leader, member, node

Gather = Callable[..., roll.Roll]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def gathered(said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gather:
    """Gather two nodes and perhaps spare ones, of which all that Ray has answer."""
    monkeypatch.setattr(roll, "listens", lambda address, port: True)

    def call(
        board: Stored, spare: int = 0, patient: bool = False, remote: Sequence[Remote] = (), hosts: Sequence[str] = ()
    ) -> roll.Roll:
        return gather(leader(board, said, 2, spare, tmp_path, tuple(hosts)), remote, patient)

    return call


REFUSED = member("n3", "refused", "--interface eth7: expected an interface of this host")


def test_a_node_that_is_refused_ends_the_launch_with_its_reason(gathered: Gather) -> None:
    with pytest.raises(LaunchError, match=r"the node n3 \(10\.0\.0\.3\).*--interface eth7"):
        gathered(Stored([member("n1"), REFUSED], [node("n1")]), patient=True)


@pytest.mark.parametrize("out", [REFUSED, member("n3", "left", "Ctrl-C there")], ids=["refused", "left"])
def test_a_spare_node_that_is_out_is_said_once_and_not_waited_for(
    gathered: Gather, said: list[str], out: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering.time, "monotonic", lambda: 0.0)
    called = gathered(Stored([member("n1"), member("n2"), out], [node("n1"), node("n2")]), spare=1)
    assert [*called.present] == ["n1", "n2"]
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
