"""Who takes part, and who is the head."""

from __future__ import annotations

import pytest

from verl_npu.errors import LaunchError
from verl_npu.launch.interface import Interface
from verl_npu.launch.party import Asked, Party, party_of

HERE = (Interface("lo", "127.0.0.1"), Interface("eth0", "10.0.0.2"))
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "n[1-4]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_NODEID": "2",
}
MPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}


def test_nothing_said_is_one_host() -> None:
    assert party_of(Asked(), {}, HERE) == Party(1, 0, "", is_head=True)


@pytest.mark.parametrize(("head", "is_head"), [("10.0.0.2", True), ("10.0.0.1", False)])
def test_the_host_with_the_heads_address_is_the_head(head: str, is_head: bool) -> None:
    assert party_of(Asked(nodes=2, head=head), {}, HERE).is_head is is_head


def test_the_first_of_the_hosts_is_the_head_unless_another_is_named() -> None:
    hosts = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    assert not party_of(Asked(hosts=hosts), {}, HERE).is_head
    party = party_of(Asked(hosts=hosts, head="10.0.0.2"), {}, HERE)
    assert party.is_head
    assert party.hosts == ("10.0.0.2", "10.0.0.1", "10.0.0.3")


def test_spare_hosts_are_not_needed() -> None:
    party = party_of(Asked(hosts=("10.0.0.1", "10.0.0.2", "10.0.0.3"), spare=1), {}, HERE)
    assert (party.needed, party.spare, party.most) == (2, 1, 3)


def test_slurm_tells_all() -> None:
    assert party_of(Asked(), SLURM, HERE) == Party(4, 0, "n1", is_head=False, hosts=("n1", "n2", "n3", "n4"))
    assert party_of(Asked(spare=1), {**SLURM, "SLURM_NODEID": "0"}, HERE).needed == 3


def test_options_come_before_slurm() -> None:
    assert party_of(Asked(nodes=2, head="10.0.0.2"), SLURM, HERE).hosts == ()


@pytest.mark.parametrize("tasks", ["2", "2(x4)", "1,2(x3)"])
def test_two_tasks_of_slurm_on_a_node_are_refused(tasks: str) -> None:
    with pytest.raises(LaunchError, match="ntasks-per-node=1"):
        party_of(Asked(), {**SLURM, "SLURM_STEP_TASKS_PER_NODE": tasks}, HERE)


def test_a_batch_script_of_slurm_that_starts_one_of_several_is_refused() -> None:
    with pytest.raises(LaunchError, match="srun"):
        party_of(Asked(), {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-4]"}, HERE)


def test_openmpi_tells_the_number_and_who_is_first() -> None:
    party = party_of(Asked(head="10.0.0.1"), MPI, HERE)
    assert (party.needed, party.is_head) == (3, False)
    assert party_of(Asked(head="10.0.0.1"), {**MPI, "OMPI_COMM_WORLD_RANK": "0"}, HERE).is_head


def test_openmpi_without_a_head_is_refused() -> None:
    with pytest.raises(LaunchError, match="--head"):
        party_of(Asked(), MPI, HERE)


def test_two_processes_of_openmpi_on_a_node_are_refused() -> None:
    with pytest.raises(LaunchError, match="ppr:1:node"):
        party_of(Asked(head="10.0.0.1"), {**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, HERE)


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
        party_of(asked, {}, HERE)
