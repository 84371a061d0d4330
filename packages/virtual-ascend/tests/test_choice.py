"""The installed packages and the settings decide which torch_npu the virtual NPUs have."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from virtual_ascend import choice
from virtual_ascend.errors import SettingError
from virtual_ascend.settings import Settings


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the files of a wheel's torch_npu that the choice looks at."""
    folder = tmp_path / "torch_npu"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "lib" / "libtorch_npu.so").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


@pytest.fixture
def none_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not (Path(entry) / "torch_npu").is_dir()])


def asked(torch_npu: str) -> Settings:
    return dataclasses.replace(Settings.read({"VIRTUAL_ASCEND": "2"}), torch_npu=torch_npu)


@pytest.mark.parametrize(("torch_npu", "real"), [("auto", True), ("real", True), ("ours", False)])
def test_an_installed_one_is_used_unless_ours_is_asked_for(installed: Path, torch_npu: str, real: bool) -> None:
    assert choice.is_real(asked(torch_npu)) is real
    assert choice.wheel() == installed


@pytest.mark.usefixtures("none_installed")
@pytest.mark.parametrize("torch_npu", ["auto", "ours"])
def test_without_one_it_is_ours(torch_npu: str) -> None:
    assert choice.is_real(asked(torch_npu)) is False


@pytest.mark.usefixtures("none_installed")
def test_to_ask_for_the_real_one_where_none_is_installed_says_what_to_install() -> None:
    with pytest.raises(SettingError, match="torch_npu is not installed; pip install --no-deps"):
        choice.is_real(asked("real"))


def test_a_folder_of_that_name_without_libraries_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch_npu" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert choice.wheel() is None
