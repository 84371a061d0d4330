"""`import torch` where virtual NPUs are requested and impossible; and the parts that come up with them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from virtual_ascend.testing.fixtures import Run

PROJECT = Path(__file__).resolve().parents[1]
SHOW = "import torch; print(torch.ones(1).item(), hasattr(torch, 'npu'))"


@pytest.mark.parametrize("value", ["two", "-1", "1.5", "65"])
def test_a_value_that_is_no_number_is_one_line_and_leaves_torch_whole(python: Run, value: str) -> None:
    done = python(SHOW, VIRTUAL_ASCEND=value)
    assert (done.returncode, done.stdout) == (0, "1.0 False\n")
    (line,) = done.stderr.splitlines()
    assert f"VIRTUAL_ASCEND={value!r}: expected a whole number of NPUs from 0 to 64" in line
    assert line.endswith("this process has no virtual NPUs")


@pytest.mark.usefixtures("from_nothing")
def test_no_compiler_is_one_line_and_leaves_torch_whole(python: Run, tmp_path: Path) -> None:
    done = python(SHOW, VIRTUAL_ASCEND_CACHE=str(tmp_path / "cache"), PATH=str(tmp_path), CXX="")
    assert (done.returncode, done.stdout) == (0, "1.0 False\n")
    (line,) = done.stderr.splitlines()
    assert "g++" in line


def test_without_the_variable_nothing_happens(python: Run) -> None:
    done = python(f"{SHOW}; import sys; print('virtual_ascend.settings' in sys.modules)", VIRTUAL_ASCEND=None)
    assert (done.stdout, done.stderr) == ("1.0 False\nFalse\n", "")


@pytest.mark.usefixtures("from_nothing")
def test_a_program_can_tell_that_its_npus_are_virtual(python: Run) -> None:
    done = python(
        "import torch, torch_npu, virtual_ascend; print(torch_npu.__simulated__, virtual_ascend.is_loaded())"
    )
    assert done.stdout == "virtual NPUs True\n", done.stderr


@pytest.mark.nightly(
    "packages/virtual-ascend/virtual_ascend/activation.py", "packages/virtual-ascend/virtual_ascend/loading.py"
)
def test_an_extension_is_called_once_where_virtual_npus_come_up(python: Run, tmp_path: Path) -> None:
    (tmp_path / "someones.py").write_text("def install(): print('called')\n")
    info = tmp_path / "someones-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: someones\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[virtual_ascend.extensions]\nsomeones = someones:install\n")
    program = f"import sys; sys.path.append({str(tmp_path)!r}); import torch, torch_npu; print('there')"
    assert python(program).stdout.splitlines() == ["called", "there"]
    assert python(program, VIRTUAL_ASCEND=None).stdout.splitlines() == []


def test_pytest_runs_tests_of_somebody_who_knows_only_torch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--npus", "2", "-p", "no:cacheprovider", str(PROJECT / "examples")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NPUs: 2 virtual (SIMULATED)" in done.stdout


@pytest.mark.parametrize("npus", ["0", "two"])
def test_another_number_of_npus_is_refused(npus: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--npus", npus], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 4
    assert "--npus" in done.stderr


def test_the_wheel_brings_the_device_and_the_line_that_python_executes(tmp_path: Path) -> None:
    words = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(PROJECT))
    subprocess.run([sys.executable, "-m", "pip", "wheel", *words], check=True)
    (wheel,) = tmp_path.glob("virtual_ascend-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "virtual_ascend.pth",
        "virtual_ascend/device/csrc/hccl.cpp",
        "virtual_ascend/site/torch_npu/__init__.py",
        "virtual_ascend/operators/schemas.json",
    } <= names
    assert not [name for name in names if name.startswith("tests/")]
