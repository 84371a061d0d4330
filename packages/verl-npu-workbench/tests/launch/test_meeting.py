from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest
from verl_npu_workbench.launch.meeting import Connection, Meeting, Member, join
from virtual_ascend.testing import free_port

HEAD, OTHER = Member("n1", "10.0.0.1", 2, "train on 2"), Member("n2", "10.0.0.2", 2, "train on 2")
Come = Callable[[Member], Connection]
PORT = free_port()


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    made = Meeting(PORT, HEAD, 2)
    yield made
    made.end(0, "")


@pytest.fixture
def come() -> Iterator[Come]:
    with ExitStack() as stack:
        yield lambda member: stack.enter_context(closing(join("127.0.0.1", PORT, member, 5)))  # type: ignore[type-var]


def soon(find: Callable[[], Any]) -> Any:
    ends = time.monotonic() + 5
    while not (found := find()) and time.monotonic() < ends:
        time.sleep(0.01)
    return found


def test_a_host_comes_starts_and_hears_the_end_and_one_too_many_is_sent_away(meeting: Meeting, come: Come) -> None:
    other, more = come(OTHER), come(replace(OTHER, address="10.0.0.3"))
    assert soon(lambda: meeting.look() or meeting.members[1:]) == [OTHER]
    assert other.hear() == {}
    meeting.start()
    assert soon(more.hear) == {"status": 2, "reason": "all nodes are already there"}
    other.say(ready=True)
    assert soon(lambda: meeting.look() or meeting.members[1].ready) is True
    meeting.end(7, "the job ended")
    assert [soon(other.hear), soon(other.hear)] == [{"start": True}, {"status": 7, "reason": "the job ended"}]


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (replace(OTHER, trouble="no NPUs"), "no NPUs"),
        (replace(OTHER, plan="another on 2"), "its job is another on 2, but the head's is train on 2"),
        (replace(OTHER, address="10.0.0.1"), "already takes part"),
    ],
)
def test_a_host_that_cannot_take_part_is_named(meeting: Meeting, come: Come, member: Member, said: str) -> None:
    other = come(member)
    (lost,) = soon(meeting.look)
    assert (lost.name, meeting.members) == ("n2", [HEAD])
    assert said in lost.trouble
    assert said in soon(other.hear)["reason"]


def test_a_host_that_leaves_is_lost_and_so_is_a_head(meeting: Meeting, come: Come) -> None:
    come(OTHER).close()
    assert soon(meeting.look) == [replace(OTHER, trouble="the connection has ended")]
    other = come(OTHER)
    assert soon(lambda: meeting.look() or meeting.members[1:]) == [OTHER]
    meeting.end(0, "")
    assert soon(other.hear)["status"] == 0
    with pytest.raises(OSError, match=r"ended|reset"):
        soon(other.hear)
    assert join("127.0.0.1", PORT, OTHER, 0.1) is None


STRANGE = [b"GET / HTTP/1.1\r\n", b'{"name": "n9"}\n', b"[1]\n", b"[" * 99999 + b"\n", b"\n", b"x"]


@pytest.mark.parametrize("text", STRANGE)
def test_a_stranger_does_no_harm(meeting: Meeting, come: Come, text: bytes) -> None:
    with socket.create_connection(("127.0.0.1", PORT)) as stranger:
        stranger.sendall(text)
        come(OTHER)
        assert soon(lambda: meeting.look() or meeting.members[1:]) == [OTHER]
