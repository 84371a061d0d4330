"""Who takes part, and who is the head.

Lists of hosts, as SLURM, a hostfile and a user write them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_npu.errors import LaunchError
from verl_npu.tools.launch.cluster import Asked, Cluster, cluster_of, expand, of_file, of_text
from verl_npu.tools.launch.network import Interface

HERE = (Interface("lo", "127.0.0.1"), Interface("eth0", "10.0.0.2"))
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "n[1-4]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_NODEID": "2",
}
MPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}


def test_nothing_said_is_one_host() -> None:
    assert cluster_of(Asked(), {}, HERE) == Cluster(1, 0, "", is_head=True)


@pytest.mark.parametrize(("head", "is_head"), [("10.0.0.2", True), ("10.0.0.1", False)])
def test_the_host_with_the_heads_address_is_the_head(head: str, is_head: bool) -> None:
    assert cluster_of(Asked(nodes=2, head=head), {}, HERE).is_head is is_head


def test_the_first_of_the_hosts_is_the_head_unless_another_is_named() -> None:
    hosts = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    assert not cluster_of(Asked(hosts=hosts), {}, HERE).is_head
    cluster = cluster_of(Asked(hosts=hosts, head="10.0.0.2"), {}, HERE)
    assert cluster.is_head
    assert cluster.hosts == ("10.0.0.2", "10.0.0.1", "10.0.0.3")


def test_spare_hosts_are_not_needed() -> None:
    cluster = cluster_of(Asked(hosts=("10.0.0.1", "10.0.0.2", "10.0.0.3"), spare=1), {}, HERE)
    assert (cluster.needed, cluster.spare, cluster.most) == (2, 1, 3)


def test_slurm_tells_all() -> None:
    assert cluster_of(Asked(), SLURM, HERE) == Cluster(4, 0, "n1", is_head=False, hosts=("n1", "n2", "n3", "n4"))
    assert cluster_of(Asked(spare=1), {**SLURM, "SLURM_NODEID": "0"}, HERE).needed == 3


def test_options_come_before_slurm() -> None:
    assert cluster_of(Asked(nodes=2, head="10.0.0.2"), SLURM, HERE).hosts == ()


@pytest.mark.parametrize("tasks", ["2", "2(x4)", "1,2(x3)"])
def test_two_tasks_of_slurm_on_a_node_are_refused(tasks: str) -> None:
    with pytest.raises(LaunchError, match="ntasks-per-node=1"):
        cluster_of(Asked(), {**SLURM, "SLURM_STEP_TASKS_PER_NODE": tasks}, HERE)


def test_a_batch_script_of_slurm_that_starts_one_of_several_is_refused() -> None:
    with pytest.raises(LaunchError, match="srun"):
        cluster_of(Asked(), {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-4]"}, HERE)


def test_openmpi_tells_the_number_and_who_is_first() -> None:
    cluster = cluster_of(Asked(head="10.0.0.1"), MPI, HERE)
    assert (cluster.needed, cluster.is_head) == (3, False)
    assert cluster_of(Asked(head="10.0.0.1"), {**MPI, "OMPI_COMM_WORLD_RANK": "0"}, HERE).is_head


def test_openmpi_without_a_head_is_refused() -> None:
    with pytest.raises(LaunchError, match="--head"):
        cluster_of(Asked(), MPI, HERE)


def test_two_processes_of_openmpi_on_a_node_are_refused() -> None:
    with pytest.raises(LaunchError, match="ppr:1:node"):
        cluster_of(Asked(head="10.0.0.1"), {**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, HERE)


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        (Asked(nodes=2), "--head HOST"),
        (Asked(nodes=2, head="localhost"), "other nodes reach"),
        (Asked(nodes=2, head="127.0.0.1"), "other nodes reach"),
        (Asked(nodes=3, hosts=("10.0.0.1", "10.0.0.2")), "3 hosts"),
        (Asked(hosts=("10.0.0.1",), spare=1), "lower it"),
        (Asked(hosts=("10.0.0.1",), head="10.0.0.9"), "one of 10.0.0.1"),
    ],
)
def test_what_contradicts_itself_is_refused(asked: Asked, word: str) -> None:
    with pytest.raises(LaunchError, match=word):
        cluster_of(asked, {}, HERE)


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


@pytest.mark.parametrize("text", ["", "# nothing\n", "node1\nnode1\n"])
def test_a_hostfile_without_hosts_or_with_one_twice_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(LaunchError, match="each host once"):
        of_file(tmp_path / "hosts")


def test_a_hostfile_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="No such file"):
        of_file(tmp_path / "none")


def test_a_typed_list_is_split_at_commas() -> None:
    assert of_text(" a, b,c,") == ("a", "b", "c")
