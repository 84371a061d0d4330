"""Compiled libraries in the cache are whole, and nobody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from virtual_ascend import cache
from virtual_ascend.errors import BuildError


@pytest.fixture
def library(tmp_path: Path) -> Path:
    made = tmp_path / "key" / "libx.so"
    made.parent.mkdir(mode=0o755)
    built = made.with_name("fresh")
    built.write_bytes(b"\x7fELF" + bytes(1000))
    cache.publish(built, made)
    return made


def test_what_was_published_is_finished_and_ours(library: Path) -> None:
    assert cache.is_finished(library)
    cache.check_owner(library)
    assert sorted(path.name for path in library.parent.iterdir()) == ["libx.so", "libx.so.size"]


def test_a_library_that_was_cut_short_is_not_finished(library: Path) -> None:
    os.truncate(library, 500)
    assert not cache.is_finished(library)


def test_a_library_without_its_note_is_not_finished(library: Path) -> None:
    library.with_name("libx.so.size").unlink()
    assert not cache.is_finished(library)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("which", ["file", "folder"])
def test_what_belongs_to_somebody_else_is_refused(library: Path, which: str) -> None:
    os.chown(library if which == "file" else library.parent, 4711, -1)
    with pytest.raises(BuildError, match="belongs to the user with the number 4711"):
        cache.check_owner(library)


@pytest.mark.parametrize("which", ["file", "folder"])
def test_what_everybody_may_write_to_is_refused(library: Path, which: str) -> None:
    (library if which == "file" else library.parent).chmod(0o777)
    with pytest.raises(BuildError, match="everybody may write"):
        cache.check_owner(library)


def test_a_killed_build_is_cleared_away_and_its_name_not_used_again(tmp_path: Path) -> None:
    left = tmp_path / f"build-{os.getpid()}"
    left.mkdir()
    (left / "lock").write_text("")
    with cache.work_folder(tmp_path) as folder:
        assert folder != left
        assert not left.exists()
    assert list(tmp_path.iterdir()) == []
