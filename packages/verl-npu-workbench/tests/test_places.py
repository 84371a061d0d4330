from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from testing.commands import Run, run
from verl_npu_workbench.places import put

__all__ = ["run"]  # fixture


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Limit the size of files, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(b"before")
    made.chmod(0o640)
    return made


def test_a_file_is_put_in_its_place_and_keeps_its_mode(file: Path) -> None:
    put(file, b"after")
    assert file.read_bytes() == b"after"
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(file.parent.iterdir()) == [file]


def test_a_disk_without_room_leaves_what_was_there(file: Path) -> None:
    with room_for(5), pytest.raises(OSError, match="File too large"):
        put(file, b"123456789")
    assert file.read_bytes() == b"before"
    assert list(file.parent.iterdir()) == [file]


def test_an_interruption_before_the_end_leaves_what_was_there(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(file, b"after")
    assert file.read_bytes() == b"before"
    assert list(file.parent.iterdir()) == [file]


def test_a_link_stays_and_what_it_leads_to_is_written(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    put(link, b"after")
    assert (link.is_symlink(), file.read_bytes()) == (True, b"after")


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    put(tmp_path / "pipe", b"said")
    assert os.read(reading, 100) == b"said"
    os.close(reading)


def test_what_a_full_disk_refused_can_be_written_again(run: Run, tmp_path: Path) -> None:
    asked = ("setup", "--pin", "v0.6.1", "--output", str(tmp_path / "made"))
    with room_for(100):
        assert run(*asked)[0] == 2
    assert run(*asked)[0] == 0
