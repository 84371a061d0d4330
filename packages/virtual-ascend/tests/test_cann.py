"""The stand-ins for npu-smi and CANN work wherever Python and the cache are; no torch."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from virtual_ascend import cann
from virtual_ascend.errors import BuildError
from virtual_ascend.settings import Settings

ASKED = {"VIRTUAL_ASCEND": "2"}


def installed(cache: Path) -> dict[str, str]:
    """Return the environment of a process that has the stand-ins, and nothing of Ascend's own."""
    environ = {"PATH": "/usr/bin:/bin", **ASKED}
    cann.install(cache, environ, "8.3.RC1", "25.2.0")
    return environ


def npu_smi(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["npu-smi", "-v"], env=environ, capture_output=True, text=True, check=False)


def test_npu_smi_answers(tmp_path: Path) -> None:
    assert npu_smi(installed(tmp_path)).stdout == "npu-smi version: 25.2.0\n"


def test_npu_smi_runs_with_a_python_whose_path_has_a_blank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "my programs" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    done = npu_smi(installed(tmp_path / "cache"))
    assert (done.returncode, done.stdout) == (0, "npu-smi version: 25.2.0\n"), done.stderr


def test_a_disk_without_room_is_one_error_and_nothing_half_written(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(
            BuildError, match=r"writable folder with free space; found .*; set VIRTUAL_ASCEND_CACHE to another folder"
        ):
            installed(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_relative_cache_is_found_again_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    environ = installed(Settings.read({**ASKED, "VIRTUAL_ASCEND_CACHE": "cache"}).cache)
    monkeypatch.chdir("elsewhere")
    assert npu_smi(environ).returncode == 0
    assert Path(environ["ASCEND_HOME_PATH"]).is_dir()


def test_a_cache_that_others_have_filled_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = tmp_path / "filled"
    filled.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != filled)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environ = installed(filled)
    assert npu_smi(environ).returncode == 0
    assert list(filled.iterdir()) == []


def test_a_cache_that_the_locale_cannot_name_is_used_all_the_same(tmp_path: Path) -> None:
    cache = tmp_path / "caché"
    program = (
        "import os, sys; from pathlib import Path; from virtual_ascend import cann\n"
        "assert sys.getfilesystemencoding() == 'ascii'\n"
        f"cache = Path(os.fsdecode({os.fsencode(cache)!r}))\n"
        "cann.install(cache, {}, '8.3.RC1', '25.2.0')"
    )
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=ascii_only, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (info,) = cache.rglob("ascend_toolkit_install.info")
    assert f"path={info.parent}" in info.read_text(encoding="utf-8")
