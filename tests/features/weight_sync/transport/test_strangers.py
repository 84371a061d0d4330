"""Strangers connect to the port where the ranks of a weight sync meet; the ranks ignore them, and the sync goes on."""

from __future__ import annotations

import json
import re
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from testing.ranks import Run

from verl_npu.features.weight_sync.transport.messages import Meeting, Secret, SignedStore, open_meeting

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.virtual

# Rank 1 comes after the strangers, who leave a file when they are done.
JOB = """
if RANK == 1:
    while not os.path.exists(FOLDER + "/go"): time.sleep(0.02)
given = {f"layer.{i}.weight": torch.full((64, 64), float(i), device=DEVICE) for i in range(4)}
group, engine = meet(), Engine()
sync(group, given, engine)
if RANK:
    tell(right=all(torch.equal(bits(engine.held[name]), bits(tensor)) for name, tensor in given.items()))
    tell(usable=engine.usable)
group.close()
"""

Stranger = Callable[[ExitStack, str, int], None]


def connect(stack: ExitStack, host: str, port: int) -> socket.socket:
    return stack.enter_context(socket.create_connection((host, port), timeout=5))


def says(message: bytes) -> Stranger:
    def stranger(stack: ExitStack, host: str, port: int) -> None:
        with suppress(OSError):
            connect(stack, host, port).sendall(message)

    return stranger


def store(host: str, port: int) -> object:
    return torch.distributed.TCPStore(host, port, None, False, timedelta(seconds=10))


def sets_the_keys_of_a_rank(stack: ExitStack, host: str, port: int) -> None:
    theirs = store(host, port)
    theirs.set("weights/join/1", json.dumps({"name": "rank 1 (stranger)", "moves": True}))
    theirs.set("weights/ready/1", b"\xff\xfe no json")


def sets_keys_that_it_has_listed(stack: ExitStack, host: str, port: int) -> None:
    theirs = store(host, port)
    if not hasattr(theirs, "list_keys"):
        return
    ends = time.monotonic() + 60
    while not (found := [key for key in theirs.list_keys() if key.endswith("join/0")]):
        assert time.monotonic() < ends
        time.sleep(0.05)
    theirs.set(found[0][:-1] + "1", json.dumps({"name": "rank 1 (stranger)", "moves": True}))


def comes_a_thousand_times(stack: ExitStack, host: str, port: int) -> None:
    for _ in range(1000):
        connect(stack, host, port)


STRANGERS: dict[str, Stranger] = {
    "keys of a rank": sets_the_keys_of_a_rank,
    "keys that it has listed": sets_keys_that_it_has_listed,
    "garbage": says(b"GET / HTTP/1.1\r\n\r\n"),
    "half a message": says(b"\x00\xc1\x03"),
    "an oversized message": says(b"\x00" + (0x3C85F7CE).to_bytes(4, "little") + b"\x01" + b"\xff" * (1 << 20)),
    "silence": says(b""),
    "a thousand connections": comes_a_thousand_times,
}


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """Raise the limit of open files: a thousand connections need a thousand."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_strangers_change_nothing(run_ranks: Run, tmp_path: Path) -> None:
    failures: dict[str, BaseException] = {}

    def attack() -> None:
        ends = time.monotonic() + 60
        while not (tmp_path / "meeting").exists() and time.monotonic() < ends:
            time.sleep(0.02)
        host, port, _ = json.loads((tmp_path / "meeting").read_text())
        for name, stranger in STRANGERS.items():
            try:
                stranger(stack, host, port)
            except BaseException as error:
                failures[name] = error
        (tmp_path / "go").touch()

    with ExitStack() as stack:
        attacking = threading.Thread(target=attack)
        attacking.start()
        files = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))\n"
        ended = run_ranks(files + JOB, tmp_path, LIMIT="60")
        attacking.join()
    assert failures == {}
    assert [rank.status for rank in ended] == [0, 0], ended[0].output + ended[1].output
    assert (ended[1].facts["right"], ended[1].facts["usable"]) == (True, True)
    said = re.findall(r"verl-npu: .*a process outside of this job wrote the message.*", ended[0].output)
    # Only the strangers who listed the keys, where torch can list them, know where a message is.
    assert len(said) == int(hasattr(torch.distributed.TCPStore, "list_keys"))


def test_the_store_listens_at_the_asked_address_alone(run_ranks: Run, tmp_path: Path) -> None:
    program = """
made = open_meeting("127.0.0.2", 0, 5.0)
rows = [line.split() for line in open("/proc/net/tcp").read().splitlines()[1:]]
tell(bound=[row[1] for row in rows if row[3] == "0A" and int(row[1].partition(":")[2], 16) == made.port])
rows = [line.split() for line in open("/proc/net/tcp6").read().splitlines()[1:]]
tell(bound6=[row[1] for row in rows if row[3] == "0A" and int(row[1].partition(":")[2], 16) == made.port])
try: open_meeting("192.0.2.1", 0, 5.0)
except WeightSyncError as error: tell(elsewhere=str(error))
"""
    (rank,) = run_ranks(program, tmp_path, size=1)
    assert [row.partition(":")[0] for row in rank.facts["bound"]] == ["0200007F"]
    assert rank.facts["bound6"] == []
    assert "cannot serve the group's messages at 192.0.2.1:0" in rank.facts["elsewhere"]


def test_a_group_is_not_made_with_somebody_who_has_another_secret(run_ranks: Run, tmp_path: Path) -> None:
    program = """
there = meeting()
if RANK: there = Meeting(there.host, there.port, Secret(bytes(32)))
begin = time.monotonic()
try: join("weights", there, RANK, SIZE, timeout=TIMEOUT, device=DEVICE)
except WeightSyncError as error: tell(error=str(error), seconds=time.monotonic() - begin)
"""
    ended = run_ranks(program, tmp_path, LIMIT="3")
    assert "rank 1 did not answer 'join' within 3 s" in ended[0].facts["error"]
    assert all(rank.facts["seconds"] < 30 for rank in ended)


def test_the_secret_is_in_no_text_of_a_meeting() -> None:
    secret = Secret(b"s3cr3t" * 5)
    meeting = Meeting("127.0.0.1", 1, secret)
    assert "s3cr3t" not in repr(meeting) + str(meeting) + repr(secret)


def test_a_value_is_believed_for_its_own_key_and_secret_alone() -> None:
    inner = torch.distributed.HashStore()
    one, other = SignedStore(inner, Secret(b"1" * 32)), SignedStore(inner, Secret(b"2" * 32))
    one.set("a", b"yes")
    inner.set("b", bytes(inner.get("a")))
    inner.set("c", b"")
    inner.set("d", bytes(inner.get("a"))[:-1] + b"S")
    assert one.read(["a", "b", "c", "d"]) == [b"yes", None, None, None]
    assert other.read(["a"]) == [None]
    assert (one.find("a"), one.find("nowhere")) == (b"yes", None)


def test_no_two_meetings_have_one_secret() -> None:
    made = [open_meeting("127.0.0.1", 0, 5.0) for _ in range(2)]
    assert made[0].secret.value != made[1].secret.value
    assert [len(each.secret.value) for each in made] == [32, 32]
