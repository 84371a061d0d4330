"""Strangers who connect to the ports of libhccl.so: the ranks drop them, report it, and meet all the same."""

from __future__ import annotations

import re
import resource
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from virtual_ascend.hccl.library import library
from virtual_ascend.testing import results, start_ranks
from virtual_ascend.variables import cache_folder

SIZE = 3
HELLO = 8 + 32 + 4 + 16
MAGIC = b"virtual\0"

# Without torch, which would take most of the time: HCCL only knows addresses.
JOB = """
import ctypes, json, os, pathlib, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
hccl = ctypes.CDLL(os.environ["HCCL_SO_PATH"])
root, meeting = (ctypes.c_byte * 4108)(), pathlib.Path(os.environ["INIT"].removeprefix("file://"))
if rank == 0:
    assert hccl.HcclGetRootInfo(root) == 0
    meeting.with_name("fresh").write_bytes(bytes(root)); meeting.with_name("fresh").rename(meeting)
while not meeting.exists() or (rank == size - 1 and not meeting.with_name("go").exists()): time.sleep(0.02)
ctypes.memmove(root, meeting.read_bytes(), 4108)
comm = ctypes.c_void_p()
code = hccl.HcclCommInitRootInfo(size, root, rank, ctypes.byref(comm))
assert code == 0, code
x = (ctypes.c_float * 4)(*(i + rank for i in range(4)))
assert hccl.HcclAllReduce(x, x, ctypes.c_size_t(4), 4, 0, comm, None) == 0
print(json.dumps(list(x)))
"""
RESULT = [3.0, 6.0, 9.0, 12.0]

Stranger = Callable[[ExitStack, int], None]


def connect(stack: ExitStack, port: int) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=3))


def says(message: bytes) -> Stranger:
    def stranger(stack: ExitStack, port: int) -> None:
        with suppress(OSError):  # the stranger may be dropped early, or be heard afterwards
            connect(stack, port).sendall(message)

    return stranger


def leaves_in_the_middle(stack: ExitStack, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(MAGIC + bytes(5))


def comes_a_thousand_times(stack: ExitStack, port: int) -> None:
    for _ in range(1000):
        connect(stack, port)


STRANGERS: dict[str, tuple[Stranger, str]] = {
    "a wrong secret": (says(MAGIC + bytes(range(32)) + bytes(HELLO - 40)), "did not know the secret of this"),
    "a rank alone": (says(b"\1\0\0\0" * 20), "did not send a rank's greeting"),
    "garbage": (says(b"GET / HTTP/1.1\r\n\r\n"), "did not send a rank's greeting"),
    "half a message": (leaves_in_the_middle, "closed before its greeting was complete"),
    "an unfinished message": (says(MAGIC + bytes(9)), "sent only a part of its greeting"),
    "silence": (says(b""), "sent nothing"),
    "an oversized message": (says(MAGIC + bytes(4 << 20)), "did not know the secret of this"),
    "a thousand connections": (comes_a_thousand_times, "dropped 1000 connections that were not from its job"),
}


def listening(pid: int) -> set[int]:
    """Return the ports at which a process listens."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(link.readlink().name.removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes}


@contextmanager
def job(folder: Path, **environment: str | None) -> Iterator[tuple[list[subprocess.Popen[str]], set[int]]]:
    """Yield ranks that wait for the last one, and the ports at which they listen; leaving lets the last one come."""
    path = str(library(cache_folder()))
    ranks = start_ranks(JOB, folder, SIZE, HCCL_SO_PATH=path, HCCL_CONNECT_TIMEOUT="30", **environment)
    try:
        ends = time.monotonic() + 90
        # Rank 0 listens as the root and as a rank, rank 1 as a rank.
        while len(ports := listening(ranks[0].pid) | listening(ranks[1].pid)) < 3:
            if time.monotonic() > ends or any(rank.poll() is not None for rank in ranks):
                pytest.fail(f"the ranks do not listen: {[rank.poll() for rank in ranks]}")
            time.sleep(0.1)
        yield ranks, ports
        (folder / "go").touch()
    except BaseException:
        for rank in ranks:
            rank.kill()
            rank.communicate()
        raise


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """Raise the limit of open files: a thousand connections need a thousand."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_is_dropped_and_the_ranks_meet(tmp_path: Path, name: str) -> None:
    stranger, line = STRANGERS[name]
    with ExitStack() as stack:
        with job(tmp_path) as (ranks, ports):
            for port in ports:
                stranger(stack, port)
        began = time.monotonic()
        out, said = [], ""
        for rank in ranks:
            stdout, stderr = rank.communicate(timeout=90)
            assert rank.returncode == 0, stderr
            out.append(stdout.strip().splitlines()[-1])
            said += stderr
    assert out == [str(RESULT)] * SIZE
    assert time.monotonic() - began < 25
    assert line in said
    told = re.findall(r"libhccl.so \(SIMULATED\): rank (\d) dropped .*", said)
    # Rank 0 listens at two of the ports, rank 1 at one.
    assert sorted(told) == ["0", "1"], said


def test_a_silent_stranger_has_a_time_limit_of_its_own(tmp_path: Path) -> None:
    with job(tmp_path) as (ranks, ports), ExitStack() as stack:
        began = time.monotonic()
        silent = [connect(stack, port) for port in ports]
        readable, _, _ = select.select(silent, [], [], 20)  # the root's port is served, the others are not yet
        assert readable[0].recv(1) == b""
        assert 1 < time.monotonic() - began < 10
    assert results(ranks) == [RESULT] * SIZE


def test_a_rank_listens_on_the_interface_that_is_asked_for_alone(tmp_path: Path) -> None:
    with job(tmp_path, HCCL_IF_IP="127.0.0.2") as (ranks, ports):
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        bound = {
            socket.inet_ntoa(bytes.fromhex(row[1][:8])[::-1])
            for row in rows
            if row[3] == "0A" and int(row[1].partition(":")[2], 16) in ports
        }
        assert bound == {"127.0.0.2"}
    assert results(ranks) == [RESULT] * SIZE
