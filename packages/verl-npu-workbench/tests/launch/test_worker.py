"""A node that cannot take part says why, and the head that waits for it learns it."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from verl_npu_workbench.launch import worker
from verl_npu_workbench.launch.cluster import Request
from verl_npu_workbench.launch.network import Interface
from verl_npu_workbench.launch.store import Announcement, Member, RayNode
from verl_npu_workbench.processes import Interruptions

from verl_npu.errors import LaunchError

from .stored import Stored

REFUSAL = LaunchError(subject="--interface eth7", expected="an interface", found="eth0", fix="correct it")
THIS = os.uname().nodename
Tell = Callable[..., tuple[int, list[Member]]]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def tell(said: list[str], monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Be refused beside a head at 10.0.0.1; return the status, and what the store was told besides."""
    own = Interface("eth0", "10.0.0.2")
    monkeypatch.setattr(worker, "here", lambda: (own,))
    monkeypatch.setattr(worker, "towards", lambda address, interfaces: own)
    monkeypatch.setattr(worker, "answers", lambda address, port: True)

    def call(store: Stored, head: str = "10.0.0.1", **given: object) -> tuple[int, list[Member]]:
        before = len(store.told)
        monkeypatch.setattr(worker, "Store", lambda *arguments: store)
        request = Request(command=("train",), nodes=2, head=head, wait=0.2, **given)
        return worker.tell(request, {}, REFUSAL, Interruptions(), said.append), store.told[before:]

    return call


def test_the_head_is_told_the_reason(tell: Tell, said: list[str]) -> None:
    told = [Member(THIS, "10.0.0.2", 0, "refused", str(REFUSAL))]
    assert tell(Stored(launch=Announcement(("train",), 2, 2))) == (2, told)
    assert said[0] == str(REFUSAL)


def test_a_node_of_the_same_name_that_is_there_is_not_taken_for_the_refused_one(tell: Tell) -> None:
    there = Stored(there=[RayNode(THIS, "10.0.0.3", True, 1)], launch=Announcement(("train",), 2, 2))
    _, (told,) = tell(there)
    assert told.name == f"{THIS}-10.0.0.2"


def test_the_head_of_another_launch_is_not_told(tell: Tell) -> None:
    assert tell(Stored(launch=Announcement(("another",), 2, 2))) == (2, [])


def test_a_head_that_does_not_answer_is_not_waited_for_longer_than_asked(tell: Tell, said: list[str]) -> None:
    assert tell(Stored()) == (2, [])
    assert said[-1] == "the head has not answered"


@pytest.mark.parametrize("given", [{"head": "10.0.0.2"}, {"attached": True}], ids=["the head itself", "over ssh"])
def test_where_nobody_is_to_be_told_it_is_one_error(tell: Tell, said: list[str], given: dict[str, object]) -> None:
    with pytest.raises(LaunchError, match="--interface eth7"):
        tell(Stored(), **given)
    assert said == []
