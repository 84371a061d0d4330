"""Who takes part, and who is the head.

Lists of hosts, as SLURM, a hostfile and a user write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from verl_npu_workbench.launch.cluster import Cluster, Request, cluster_of, expand, of_file, of_text
from verl_npu_workbench.launch.network import Interface

from verl_npu.errors import LaunchError

HERE = (Interface("lo", "127.0.0.1"), Interface("eth0", "10.0.0.2"))
THREE = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "n[1-4]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_NODEID": "2",
}
MPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}


def cluster(environ: Mapping[str, str] = {}, **asked: Any) -> Cluster:
    return cluster_of(Request(command=("train",), **asked), environ, HERE)


def test_nothing_said_is_one_host() -> None:
    assert cluster() == Cluster(1, 0, "", is_head=True)


@pytest.mark.parametrize(("head", "is_head"), [("10.0.0.2", True), ("10.0.0.1", False)])
def test_the_host_with_the_heads_address_is_the_head(head: str, is_head: bool) -> None:
    assert cluster(nodes=2, head=head).is_head is is_head


def test_the_first_of_the_hosts_is_the_head_unless_another_is_named() -> None:
    assert not cluster(hosts=THREE).is_head
    named = cluster(hosts=THREE, head="10.0.0.2")
    assert (named.is_head, named.hosts) == (True, ("10.0.0.2", "10.0.0.1", "10.0.0.3"))


def test_spare_hosts_are_not_needed() -> None:
    found = cluster(hosts=THREE, spare=1)
    assert (found.needed, found.spare, found.most) == (2, 1, 3)


def test_slurm_tells_all() -> None:
    assert cluster(SLURM) == Cluster(4, 0, "n1", is_head=False, hosts=("n1", "n2", "n3", "n4"))
    assert cluster({**SLURM, "SLURM_NODEID": "0"}, spare=1).needed == 3


def test_options_come_before_slurm() -> None:
    assert cluster(SLURM, nodes=2, head="10.0.0.2").hosts == ()


def test_openmpi_tells_the_number_and_who_is_first() -> None:
    found = cluster(MPI, head="10.0.0.1")
    assert (found.needed, found.is_head) == (3, False)
    assert cluster({**MPI, "OMPI_COMM_WORLD_RANK": "0"}, head="10.0.0.1").is_head


@pytest.mark.parametrize(
    ("environ", "asked", "word"),
    [
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2"}, {}, "ntasks-per-node=1"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x4)"}, {}, "ntasks-per-node=1"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "1,2(x3)"}, {}, "ntasks-per-node=1"),
        # A batch script starts one of several.
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-4]"}, {}, "srun"),
        (MPI, {}, "--head"),
        ({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, {"head": "10.0.0.1"}, "ppr:1:node"),
        ({}, {"nodes": 2}, "--head HOST"),
        ({}, {"nodes": 2, "head": "localhost"}, "other nodes reach"),
        ({}, {"nodes": 2, "head": "127.0.0.1"}, "other nodes reach"),
        ({}, {"nodes": 3, "hosts": THREE[:2]}, "3 hosts"),
        ({}, {"hosts": THREE[:1], "spare": 1}, "lower it"),
        ({}, {"hosts": THREE[:1], "head": "10.0.0.9"}, "one of 10.0.0.1"),
    ],
)
def test_what_cannot_be_is_refused(environ: dict[str, str], asked: dict[str, Any], word: str) -> None:
    with pytest.raises(LaunchError, match=word):
        cluster(environ, **asked)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("node[08-10,12],login1", ["node08", "node09", "node10", "node12", "login1"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a1.x,b[7]-ib", ["a1.x", "b7-ib"]),
    ],
)
def test_a_list_of_slurm_is_expanded(text: str, hosts: list[str]) -> None:
    assert [*expand(text)] == hosts


@pytest.mark.parametrize("text", ["", "node[", "node[a-b]", "node[3-1]", "node[1-99999999]", "a,,b", "a,a"])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LaunchError):
        expand(text)


def test_a_hostfile_has_a_host_a_line(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# our cluster\nnode1 slots=8\n\nnode2:8  # the second\n")
    assert of_file(file) == ("node1", "node2")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "each host once"),
        ("# nothing\n", "each host once"),
        ("node1\nnode1\n", "each host once"),
        (None, "No such"),
    ],
)
def test_a_hostfile_that_is_none_is_refused(tmp_path: Path, text: str | None, word: str) -> None:
    if text is not None:
        (tmp_path / "hosts").write_text(text)
    with pytest.raises(LaunchError, match=word):
        of_file(tmp_path / "hosts")


def test_a_typed_list_is_split_at_commas() -> None:
    assert of_text(" a, b,c,") == ("a", "b", "c")
