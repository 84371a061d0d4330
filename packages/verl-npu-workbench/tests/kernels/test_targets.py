"""Named kernels are found without an import."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from verl_npu_workbench.kernels import targets

from verl_npu.errors import CommandError

from .conftest import ADD


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "site" / "of_kernels" / "ops"
    folder.mkdir(parents=True)
    for each in (folder, folder.parent):
        (each / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "add.py").write_text(ADD)
    (folder / "host.py").write_text("import triton\n")
    return tmp_path / "site"


@pytest.mark.parametrize("named", ["of_kernels", "of_kernels/ops", "of_kernels/ops/add.py"])
def test_a_path_is_named_from_the_folder_of_its_top_package(package: Path, tmp_path: Path, named: str) -> None:
    found = targets.find(str(package / named), tmp_path)
    assert found == targets.Target(package, (package / "of_kernels/ops/add.py",))
    assert list(targets.tops(found)) == [package / "of_kernels"]


@pytest.mark.parametrize("named", ["of_kernels", "of_kernels.ops", "of_kernels.ops.add"])
def test_a_module_is_found_without_importing_its_package(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.syspath_prepend(package)
    assert targets.find(named, tmp_path).files == (package / "of_kernels/ops/add.py",)


def test_a_wheel_is_unpacked_and_no_file_of_it_leaves_the_folder(tmp_path: Path) -> None:
    wheel, inside = tmp_path / "of_kernels-1-py3-none-any.whl", tmp_path / "inside"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("of_kernels/add.py", ADD)
        archive.writestr("../outside.py", ADD)
    found = targets.find(str(wheel), inside)
    assert found.root == inside
    assert not (tmp_path / "outside.py").exists()
    assert inside / "of_kernels/add.py" in found.files


@pytest.mark.parametrize("named", ["no_such_module", "no such/file.py", "os..path", "triton.kernels!"])
def test_what_is_not_there_is_one_clear_error(tmp_path: Path, named: str) -> None:
    with pytest.raises(CommandError, match="expected an installed module, a Python file, a folder, or a wheel"):
        targets.find(named, tmp_path)


def test_a_folder_without_kernels_says_so(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import os\n")
    with pytest.raises(CommandError, match="no Triton kernels in 1 file"):
        targets.find(str(tmp_path), tmp_path)


def test_a_damaged_wheel_says_so(tmp_path: Path) -> None:
    wheel = tmp_path / "damaged.whl"
    wheel.write_bytes(b"PK")
    with pytest.raises(CommandError, match="download the wheel again"):
        targets.find(str(wheel), tmp_path)
