"""Hostile scripts: nothing outside the sandbox changes, and all of them end in time."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from verl_npu_workbench.sandbox import (
    Limits,
    Sandbox,
    cgroup,
    device_cache,
    importable,
    run,
    sandbox_program,
    why_none,
)

from verl_npu.errors import SandboxError, SourceError

from .jobs.conftest import Captured, captured, sandboxed, tree, write

__all__ = ["captured", "sandboxed", "tree", "write"]  # fixtures
PROJECT = Path(__file__).resolve().parents[3]
LIMITS = Limits(20.0, processes=100, output=1 << 16, memory=600 << 20, file=64 << 20)
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def state(path: Path) -> str:
    found = path.lstat()
    # Writing to a device changes its mtime; a change of its mode or owner changes ctime.
    times = (found.st_ctime_ns,) if path.parent == Path("/dev") else (found.st_ctime_ns, found.st_mtime_ns)
    return f"{path} {found.st_mode} {found.st_uid} {found.st_gid} {found.st_size} {times}"


def digest(folder: Path) -> dict[str, str]:
    """Return the mode, owner, times and content of every file of a folder."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = f"{state(path)} {content}"
    return found


def machine() -> list[str]:
    """Return the state of the paths that a script would change first if it got out."""
    folders = [
        Path("/"),
        Path("/etc"),
        Path("/usr"),
        Path("/usr/local"),
        Path("/opt"),
        Path("/var"),
        Path.home(),
        PROJECT,
    ]
    paths = [*folders, *(Path("/dev", name) for name in DEVICES), Path("/etc/passwd"), Path("/etc/hosts")]
    listed = [f"{folder}: {sorted(os.listdir(folder))}" for folder in folders]
    kernel = [
        Path("/proc/sys", name).read_text() for name in ("vm/swappiness", "kernel/core_pattern", "kernel/hostname")
    ]
    return [state(path) for path in paths if path.exists() and path != Path("/")] + listed + kernel


@pytest.fixture(autouse=True)
def nothing_changes(sandboxed: None, tree: Path, tmp_path: Path) -> Iterator[None]:
    """Check after each test that the tree with its scripts, a folder beside it, and the machine are unchanged."""
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "precious").write_text("content")
    before = machine(), digest(beside), digest(tree / "verl"), sorted(os.listdir(tree))
    yield
    assert (machine(), digest(beside), digest(tree / "verl"), sorted(os.listdir(tree))) == before


DESTROYING = {
    "its home": "timeout 1 rm -rf ~ $HOME/* /root /home >/dev/null 2>&1",
    "the root": "timeout 1 rm -rf --no-preserve-root / 2>/dev/null",
    "the tree": 'rm -rf "$PWD" ./* verl',
    "the folder above": "rm -rf ../* ../beside ../.??*",
    # A message for each file would exceed the output that a script may print, and end it.
    "the project": f"rm -rf {PROJECT} {PROJECT}/* 2>/dev/null",
    "the interpreter": f"rm -rf {sys.prefix}/bin {sys.base_prefix}/bin 2>/dev/null",
    "system files": "echo x > /etc/passwd; echo x >> /etc/hosts; touch /x {/usr,/usr/local,/usr/bin,/opt,/var,/etc}/x",
    "the tree's files": "echo x > verl/__init__.py; touch verl/x; mv verl other; ln -sf /etc/passwd verl/trainer/x",
    "files beside the tree": "echo x > ../beside/precious; mkdir -p ../beside; touch ../beside/x",
    "modes": "timeout 1 chmod -R 777 /etc verl ../beside / 2>/dev/null; chmod 000 verl/__init__.py /etc/passwd",
    "owners": "timeout 1 chown -R 1:1 /etc verl ../beside / 2>/dev/null; chown 1 verl/__init__.py",
    "devices": "chmod 000 /dev/*; chown 1:1 /dev/*; rm -f /dev/null /dev/zero; mv /dev/full /dev/x",
    "the kernel's parameters": "echo 1 > /proc/sys/vm/swappiness; echo x > /proc/sys/kernel/core_pattern; hostname x; "
    "echo x > /proc/sys/kernel/hostname; echo b > /proc/sysrq-trigger",
    "mounts": "mount -o remount,rw /; mount -o remount,rw,bind /etc; umount -l /etc; mount --bind / /mnt; "
    "unshare -Urm sh -c 'mount -o remount,rw,bind /etc; umount -l /etc; touch /etc/x'",
    "other users' rights": "sudo rm -rf /etc; su -c 'rm -rf /etc'; "
    "cp /bin/sh /tmp/sh; chmod u+s /tmp/sh; /tmp/sh -p -c 'touch /etc/x'",
    "other roots": "for p in /proc/[0-9]*; do touch $p/root/x $p/cwd/x; done; touch /proc/1/root/etc/x",
    "what is open": "for f in /proc/self/fd/*; do echo x > $f; rm -f $f; chmod 0 $f; done",
}


@pytest.mark.parametrize("lines", DESTROYING.values(), ids=DESTROYING.keys())
def test_a_script_that_destroys_changes_nothing(captured: Captured, lines: str) -> None:
    found = captured(f"{{ {lines}; }} </dev/null", "exit 7", limits=LIMITS)
    assert found.ended.seconds < 20


def test_a_script_that_kills_everything_kills_only_itself(captured: Captured) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        captured("kill -9 -1", f"kill -9 {other.pid} {os.getpid()} {os.getppid()}", limits=LIMITS)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


ENDLESS = {
    "a script that ignores signals": ("trap '' TERM INT HUP; while :; do :; done", "still running after 1 s"),
    "a process that detaches itself": ("setsid bash -c 'while :; do :; done' & wait", "still running after 1 s"),
    "output": ("yes", "printed more than 4 MiB"),
    "processes": (":(){ :|:& };:\nwait; while :; do :; done", "processes at once"),
    "sleeping processes": ("while :; do /bin/sleep 60 & done", "processes at once"),
}


@pytest.mark.parametrize(("line", "reason"), ENDLESS.values(), ids=ENDLESS.keys())
def test_a_script_without_end_is_ended_in_one_line(captured: Captured, line: str, reason: str) -> None:
    limits = Limits(1.0 if "after" in reason else 30.0, processes=100, output=1 << 16)
    started = time.monotonic()
    with pytest.raises(SourceError, match=reason) as error:
        captured(line, limits=limits)
    assert time.monotonic() - started < 25
    assert "\n" not in str(error.value)


HUNGRY = {
    "memory": "python3 -c 'x = b\"x\" * (4 << 30)'",
    "files in its tree": "for i in $(seq 90); do head -c 50M /dev/zero > x$i; done",
    "shared mappings": "python3 -c 'import mmap; m = mmap.mmap(-1, 4 << 30); "
    """[m.write(b"x" * 65536) for _ in range(65536)]'""",
    "shared mappings of many": "for i in $(seq 15); do python3 -c 'import mmap, time; m = mmap.mmap(-1, 50 << 20); "
    """m.write(b"x" * (50 << 20)); time.sleep(60)' & done; wait""",
    "memory files that nobody maps": "python3 -c 'import os; "
    """[os.write(os.memfd_create("x"), b"x" * (50 << 20)) for _ in range(90)]'""",
}


def test_a_script_cannot_take_the_machines_memory(captured: Captured) -> None:
    with pytest.raises(SourceError, match="more than 600 MiB of memory"):
        captured(HUNGRY["memory"], limits=replace(LIMITS, seconds=60.0))


@pytest.mark.parametrize("line", HUNGRY.values(), ids=HUNGRY.keys())
def test_a_script_cannot_take_the_machines_memory_where_there_is_no_cgroup(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(cgroup, "ROOT", Path("/none"))
    with pytest.raises(SourceError, match="more than 600 MiB of memory"):
        captured(line, limits=replace(LIMITS, seconds=60.0))


def test_memory_that_many_processes_map_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's object store is an example: 30 processes with the same 100 MiB do not take 600."""
    monkeypatch.setattr(cgroup, "ROOT", Path("/none"))
    code = (
        "import mmap, os, time; m = mmap.mmap(-1, 100 << 20); m.write(b'x' * (100 << 20))\n"
        "for _ in range(30):\n"
        "    if not os.fork(): sum(m[at] for at in range(0, len(m), 4096)); time.sleep(3); os._exit(0)\n"
        "while True:\n    try: os.wait()\n    except ChildProcessError: break"
    )
    done = run(
        Sandbox(), [sys.executable, "-S", "-c", code], Path("/tmp"), {"PATH": os.defpath}, LIMITS, tmp_path / "log"
    )
    assert (done.status, done.limit) == (0, "")


WRITTEN = {
    "a large file": ("head -c 90M /dev/zero > x; sleep 9", "wrote more than 32 MiB"),
    "many files": ("for i in $(seq 900); do head -c 99K /dev/zero > $i; done; sleep 9", "wrote more than 32 MiB"),
    "deep folders": (
        "for i in $(seq 200); do mkdir d; cd d; done; sleep 9",
        "created folders more than 64 levels deep",
    ),
}


@pytest.mark.parametrize(("line", "said"), WRITTEN.values(), ids=WRITTEN.keys())
def test_what_is_left_in_a_writable_folder_has_a_limit(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "out").mkdir()
    sandbox, limits = Sandbox(writable={Path("/out"): tmp_path / "out"}), replace(LIMITS, written=32 << 20)
    done = run(sandbox, ["sh", "-c", line], Path("/out"), {"PATH": os.defpath}, limits, tmp_path / "log")
    assert said in done.limit


def test_a_script_cannot_hide_memory_behind_mounts_of_its_own(captured: Captured) -> None:
    found = captured("unshare -Urm true", "cat /proc/sys/kernel/shmall", limits=LIMITS)
    assert b"unshare failed" in found.ended.output


def test_a_script_cannot_write_a_large_file(captured: Captured) -> None:
    assert captured("head -c 4G /dev/zero > /tmp/x", limits=LIMITS).ended.status != 0


def test_a_script_cannot_fill_the_disk_with_its_output(captured: Captured) -> None:
    with pytest.raises(SourceError, match="printed more than 4 MiB"):
        captured("fallocate -l 60M /proc/self/fd/1; /bin/sleep 5", limits=LIMITS)
    assert captured("truncate -s 1T /proc/self/fd/1", limits=LIMITS).ended.status != 0


def test_many_calls_do_not_take_our_own_memory(captured: Captured) -> None:
    with pytest.raises(SourceError, match="still running"):
        captured("yes >&$STAND_IN_CALLS", limits=Limits(1.0))


def test_a_script_has_no_network(captured: Captured) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = ("127.0.0.1", server.getsockname()[1])
        found = captured(f'python3 -c "import socket; socket.create_connection({place}, 2)"', limits=LIMITS)
    assert found.ended.status == 1
    assert b"rror" in found.ended.output


def test_a_download_is_noted_and_not_made(captured: Captured) -> None:
    found = captured("curl -O https://example.com/x && wget https://example.com/y", limits=LIMITS)
    assert [call.program for call in found.calls] == ["curl", "wget"]


def test_a_script_sees_nothing_of_the_users_home(captured: Captured) -> None:
    found = captured("find ~ -maxdepth 3 -not -type d", limits=LIMITS)
    seen = tuple(map(str, (sys.prefix, sys.base_prefix, device_cache())))
    assert [path for path in found.ended.output.decode().split() if not path.startswith(seen)] == []


def test_a_script_has_no_capabilities_and_gains_none(captured: Captured) -> None:
    found = captured("grep CapEff /proc/self/status; sh -c 'grep CapEff /proc/self/status'", limits=LIMITS)
    assert set(found.ended.output.split()) == {b"CapEff:", b"0000000000000000"}


def test_nothing_of_a_script_survives_it(captured: Captured) -> None:
    name = f"1{os.getpid():09d}"
    captured(f"setsid nohup /bin/sleep {name} >/dev/null 2>&1 &", "/bin/sleep 0.2", limits=LIMITS)
    for _ in range(50):
        left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if name in _text(path)]
        if not left:
            return
        time.sleep(0.1)
    pytest.fail(f"{left} are left")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_a_nested_namespace_cannot_take_read_only_away(captured: Captured) -> None:
    """By system calls alone: the programs for it need to write to places that /proc denies them."""
    new_user, new_mounts, remount = 0x10000000, 0x00020000, 32 | 4096
    code = (
        f"import ctypes; c = ctypes.CDLL(None); print('unshared', c.unshare({new_user | new_mounts})); "
        "places = [b'/etc', b'/dev/full', b'verl', b'/proc']; "
        f"[print('remounted', c.mount(None, place, None, {remount}, None)) for place in places]; "
        "[print('taken away', c.umount2(place, 2)) for place in places]"
    )
    found = captured(f'python3 -c "{code}"', limits=LIMITS)
    assert b"remounted 0" not in found.ended.output
    assert b"taken away 0" not in found.ended.output
    assert b"remounted -1" in found.ended.output


def test_a_real_cann_is_not_there_and_its_place_can_be_written(captured: Captured) -> None:
    found = captured("mkdir -p /usr/local/Ascend/x && ls /usr/local/Ascend", limits=LIMITS)
    assert found.ended.output == b"x\n"


def test_a_tree_can_be_written_beside_what_is_in_it(captured: Captured, tree: Path) -> None:
    found = captured("mkdir -p logs outputs/x && touch train.log && ls", limits=LIMITS)
    assert found.ended.output.decode().split() == ["examples", "logs", "outputs", "train.log", "verl"]


def test_the_output_is_kept_up_to_its_limit(captured: Captured) -> None:
    found = captured("head -c 100000 /dev/zero | tr '\\0' x", limits=LIMITS)
    assert found.ended.output == b"x" * (1 << 16)


def test_a_writable_folder_keeps_what_is_written(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    inside = Path("/tmp/out")
    done = run(
        Sandbox(writable={inside: tmp_path / "out"}),
        ["sh", "-c", "echo text > file; exit 3"],
        inside,
        {"PATH": os.defpath},
        LIMITS,
        tmp_path / "log",
    )
    assert done.status == 3
    assert (tmp_path / "out" / "file").read_text() == "text\n"


def test_a_command_that_is_not_there_is_said_in_a_line(tmp_path: Path) -> None:
    done = run(Sandbox(), ["no-such-program"], Path("/tmp"), {"PATH": os.defpath}, LIMITS, tmp_path / "log")
    assert done.status != 0
    assert done.output == b"no-such-program: No such file or directory\n"


def test_a_command_runs_within_its_limits_without_a_sandbox_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = run(None, ["sh", "-c", "echo $A; pwd"], tmp_path, {"PATH": os.defpath, "A": "x"}, LIMITS, log)
    assert (done.status, done.output.decode()) == (0, f"x\n{tmp_path}\n")
    name = f"2{os.getpid():09d}"
    done = run(None, ["sh", "-c", f"setsid sleep {name} & wait"], tmp_path, {"PATH": os.defpath}, Limits(1.0), log)
    assert done.limit == "the program was still running after 1 s"
    assert [path for path in Path("/proc").glob("[0-9]*/cmdline") if name in _text(path)] == []


def test_why_there_is_no_sandbox_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert why_none() == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_none() == "bwrap is not on PATH"


def test_a_machine_without_bubblewrap_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="bubblewrap"):
        sandbox_program()


def test_a_machine_that_allows_no_sandbox_is_told_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match="No permissions to create a new namespace"):
        sandbox_program()


def test_folders_that_are_imported_from_are_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), sys.prefix, str(tmp_path / "none")])
    assert importable(Path("/tree")) == (tmp_path,)


def test_the_tree_and_what_it_lies_in_are_not_seen_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path.parent)])
    assert importable(tmp_path) == ()


def test_what_pip_installed_editable_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    finder = type(sys)("__editable___package_1_0_finder")
    finder.MAPPING = {"package": str(tmp_path)}  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setitem(sys.modules, finder.__name__, finder)
    assert importable(Path("/tree")) == (tmp_path,)
