"""Who is there, who is missing, and who was lost."""

from __future__ import annotations

import socket

from verl_npu_workbench.launch.cluster import Cluster
from verl_npu_workbench.launch.store import Member, Membership, RayNode, missing_hosts, read_membership, unresponsive

from .stored import Stored, as_store, member, node


def ask(members: list[Member], nodes: list[RayNode]) -> Membership:
    return read_membership(as_store(Stored(members, nodes)))


def test_a_node_is_present_if_it_and_ray_say_so() -> None:
    members = ask([member("n1"), member("n2"), member("n3", "left")], [node("n1"), node("n3"), node("n4")])
    assert [*members.present] == ["n1"]
    assert members.npus == 8


def test_a_node_that_is_coming_is_not_gone() -> None:
    assert ask([member("n1"), member("n2")], [node("n1")]).gone() == []


def test_a_node_that_ray_has_no_more_is_lost() -> None:
    (lost,) = ask([member("n1"), member("n2")], [node("n1"), node("n2", alive=False)]).gone()
    assert (lost.name, lost.address) == ("n2", "10.0.0.2")
    assert "does not answer" in lost.reason


def test_a_node_that_left_says_why() -> None:
    members = ask([member("n1"), member("n2", "left", "Ctrl-C there", ("last",))], [node("n1"), node("n2")])
    (lost,) = members.lost(["n1", "n2"])
    assert (lost.reason, lost.lines) == ("Ctrl-C there", ("last",))


def test_a_node_that_came_back_is_present() -> None:
    members = ask([member("n2")], [node("n2", alive=False), node("n2")])
    assert [*members.present] == ["n2"]
    assert members.lost(["n2"]) == []


def test_missing_hosts_are_named_as_the_list_has_them() -> None:
    cluster = Cluster(3, 0, "n1", is_head=True, hosts=("n1.local", "10.0.0.2", "10.0.0.3"))
    assert missing_hosts(cluster, {"n1": member("n1"), "n2": member("n2")}) == ["10.0.0.3"]
    assert missing_hosts(Cluster(3, 0, "n1", is_head=True), {}) == []


def test_a_node_whose_ray_does_not_answer_is_lost_before_ray_knows_it() -> None:
    with socket.socket() as listening, socket.socket() as bound:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        bound.bind(("127.0.0.1", 0))
        nodes = [
            RayNode(name, "127.0.0.1", True, each.getsockname()[1])
            for name, each in (("n1", listening), ("n2", bound))
        ]
        assert [lost.name for lost in unresponsive(as_store(Stored([], nodes)), ["n1", "n2"])] == ["n2"]
