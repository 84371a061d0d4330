"""Limits that the kernel enforces, where this machine lets us have a cgroup; other machines are simulated."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from verl_npu_workbench.sandbox import Limits, cgroup, run

LIMITS = Limits(30.0, memory=200 << 20)


def test_the_kernel_refuses_what_is_above_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox need not look at the processes for it."""
    with cgroup.group(LIMITS.memory, 512) as made:
        if made is None:
            pytest.skip("no cgroup can be made here")
        assert made.command or made.members is not None
    monkeypatch.setattr("verl_npu_workbench.sandbox.limits.memory_of", lambda processes, enough: 0)
    command = [sys.executable, "-S", "-c", "x = b'x' * (1 << 30); print('reached')"]
    done = run(None, command, tmp_path, {"PATH": os.defpath}, LIMITS, tmp_path / "log")
    assert done.limit == "the program used more than 200 MiB of memory"
    assert b"reached" not in done.output
    assert made.folder is None or not made.folder.exists()


@pytest.fixture
def v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in place of cgroup version 2's, with this process at its root."""
    root = tmp_path / "cgroup"
    root.mkdir()
    (root / "cgroup.controllers").write_text("memory pids")
    monkeypatch.setattr(cgroup, "ROOT", root)
    return root


def test_where_a_folder_cannot_be_made_systemd_makes_a_scope(
    v2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated, with a program in systemd-run's place, and an empty folder in the kernel's."""
    fake = tmp_path / "systemd-run"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != true ]; do shift; done\nexec "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(cgroup, "_made", lambda memory, processes: None)
    cgroup._systemd.cache_clear()
    with cgroup.group(1 << 30, 99) as made:
        assert made is not None
        assert made.command[0] == str(fake)
        assert {"MemoryMax=1073741824", "MemorySwapMax=0", "TasksMax=99"} <= set(made.command)
    cgroup._systemd.cache_clear()


def test_a_folder_of_another_file_system_is_none(v2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/sys/fs/cgroup itself is one where version 1's controllers are mounted below it."""
    monkeypatch.setattr(cgroup, "_folder_of", lambda file, controller: v2)
    with cgroup.group(1 << 30, 99) as made:
        assert made is None
    assert [path.name for path in v2.iterdir()] == ["cgroup.controllers"]


def test_nothing_is_made_without_a_limit() -> None:
    with cgroup.group(0, 99) as made:
        assert made is None


@pytest.mark.parametrize(
    ("name", "text", "refused"),
    [
        ("memory.events", "low 0\noom 1\noom_kill 1\n", True),
        ("memory.events", "low 0\noom 1\noom_kill 0\n", False),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", True),
    ],
)
def test_both_versions_say_whether_they_refused(tmp_path: Path, name: str, text: str, refused: bool) -> None:
    (tmp_path / name).write_text(text)
    assert cgroup.Group(tmp_path).refused() is refused
