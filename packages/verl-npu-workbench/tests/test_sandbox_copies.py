"""The contents of a folder that a stranger wrote to are copied as ordinary files, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from verl_npu_workbench.sandbox import copies
from verl_npu_workbench.sandbox.copies import Copies


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "outer" / "ray" / "session_2" / "logs"
    folder.mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "worker-key.out").write_text("secret")
    return folder


@pytest.fixture
def copied(tmp_path: Path, logs: Path) -> Copies:
    return Copies(tmp_path / "outer", "ray/session_2*/logs/worker-*", tmp_path / "ours")


def texts(found: list[Path]) -> dict[str, str]:
    return {path.name: path.read_text() for path in found}


def test_a_copy_grows_as_its_file_does_and_outlives_it(logs: Path, copied: Copies) -> None:
    (logs / "worker-1.out").write_text("a")
    (logs / "other").write_text("x")
    assert texts(copied.poll()) == {"worker-1.out": "a"}
    with (logs / "worker-1.out").open("a") as file:
        file.write("b")
    assert texts(copied.poll()) == {"worker-1.out": "ab"}
    (logs / "worker-1.out").unlink()
    assert texts(copied.poll()) == {"worker-1.out": "ab"}


def test_a_link_in_a_files_place_is_not_followed(logs: Path, copied: Copies, tmp_path: Path) -> None:
    (logs / "worker-1.out").symlink_to(tmp_path / "secret" / "worker-key.out")
    assert copied.poll() == []


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_a_link_in_a_folders_place_is_not_followed(logs: Path, copied: Copies, tmp_path: Path, level: int) -> None:
    (tmp_path / "other" / "ray" / "session_2" / "logs").mkdir(parents=True)
    (tmp_path / "other" / "ray" / "session_2" / "logs" / "worker-key.out").write_text("secret")
    place = [tmp_path / "outer", *reversed(logs.parents[:2]), logs][level]
    place.rename(tmp_path / "moved")
    place.symlink_to(tmp_path / "other" / place.relative_to(tmp_path / "outer"))
    assert copied.poll() == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_is_not_waited_for(logs: Path, copied: Copies) -> None:
    os.mkfifo(logs / "worker-1.out")
    (logs / "worker-2.out").mkdir()
    assert copied.poll() == []


def test_a_name_that_commands_a_terminal_is_left_out(logs: Path, copied: Copies) -> None:
    (logs / "worker-\x1b[2J.out").write_text("x")
    assert copied.poll() == []


def test_copies_are_limited_in_size_and_number(logs: Path, copied: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_LARGEST", 3)
    monkeypatch.setattr(copies, "_MOST_FILES", 2)
    for number in range(4):
        (logs / f"worker-{number}.out").write_text("abcdef")
    assert texts(copied.poll()) == {"worker-0.out": "abc", "worker-1.out": "abc"}
