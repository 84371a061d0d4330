"""Compiled libraries in the cache are complete, and nobody else's."""

from __future__ import annotations

import grp
import os
import pwd
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
    with pytest.raises(BuildError, match="a file or folder of user 4711"):
        cache.check_owner(library)


@pytest.mark.parametrize("which", ["file", "folder"])
def test_what_everybody_may_write_to_is_refused(library: Path, which: str) -> None:
    (library if which == "file" else library.parent).chmod(0o777)
    with pytest.raises(BuildError, match="everybody can write to"):
        cache.check_owner(library)


@pytest.fixture
def shared_group(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    """Let the library's group have other members."""
    entry = grp.struct_group(("team", "x", library.stat().st_gid, ["alice", "bob"]))
    monkeypatch.setattr(grp, "getgrgid", lambda _: entry)


@pytest.mark.usefixtures("shared_group")
@pytest.mark.parametrize("which", ["file", "folder"])
def test_what_a_group_may_write_to_is_refused(library: Path, which: str) -> None:
    path = library if which == "file" else library.parent
    path.chmod(0o775)
    with pytest.raises(BuildError, match=rf"group \d+ can write to.*chmod g-w {path}"):
        cache.check_owner(library)


@pytest.mark.usefixtures("shared_group")
def test_what_is_built_where_the_group_may_write_is_closed_to_it(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        folder = tmp_path / "new"
        folder.mkdir()
        (folder / "fresh").write_bytes(b"x")
        cache.publish(folder / "fresh", folder / "libx.so")
    finally:
        os.umask(before)
    cache.check_owner(folder / "libx.so")


@pytest.mark.parametrize("which", ["file", "folder"])
def test_the_group_of_this_user_alone_may_write(library: Path, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(grp, "getgrgid", lambda group: grp.struct_group((name, "x", group, [])))
    (library if which == "file" else library.parent).chmod(0o775)
    cache.check_owner(library)


def test_a_killed_build_is_cleared_away_and_its_name_not_used_again(tmp_path: Path) -> None:
    left = tmp_path / f"build-{os.getpid()}"
    left.mkdir()
    (left / "lock").write_text("")
    with cache.work_folder(tmp_path) as folder:
        assert folder != left
        assert not left.exists()
    assert list(tmp_path.iterdir()) == []
