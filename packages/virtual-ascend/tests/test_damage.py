"""Python starts and torch is imported even with a damaged file of the virtual Ascend."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
PTH = (PROJECT / "virtual_ascend" / "virtual_ascend.pth").read_text()
# The steps of Python's start, and the end of `import torch`, for which torch itself is not needed.
PROGRAM = f"{PTH}import virtual_ascend_entry as e; e.autoload(); print('torch lives')"
FILES = (
    "__init__",
    "activation",
    "variables",
    "errors",
    "settings",
    "faults",
    "version",
    "exposure",
    "choice",
    "loading",
)
DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "another text": lambda path: path.write_text("no Python at all"),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "prebuilt")
    shutil.copytree(PROJECT / "virtual_ascend", tmp_path / "virtual_ascend", ignore=ignored)
    shutil.copy(PROJECT / "virtual_ascend_entry.py", tmp_path)
    return tmp_path


def start(copy: Path, count: str) -> subprocess.CompletedProcess[str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("VIRTUAL_", "PYTHON"))}
    environ = kept | {"VIRTUAL_ASCEND": count, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    # With -S no .pth file of this environment runs, and torch does not get in our way.
    command = [sys.executable, "-S", "-B", "-c", PROGRAM]
    return subprocess.run(command, cwd=copy, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_damage_is_one_line(copy: Path, file: str, damage: str) -> None:
    DAMAGES[damage](copy / "virtual_ascend" / f"{file}.py")
    done = start(copy, "2")
    assert (done.returncode, done.stdout) == (0, "torch lives\n"), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("virtual-ascend: ")
    assert ("virtual_ascend" if file == "__init__" else file) in line
    assert line.endswith("this process has no virtual NPUs")


@pytest.mark.parametrize("count", ["", "0", "00", " 0 "])
def test_where_none_is_asked_for_nothing_is_loaded(copy: Path, count: str) -> None:
    (copy / "virtual_ascend" / "__init__.py").write_text("no Python at all")
    done = start(copy, count)
    assert (done.returncode, done.stdout, done.stderr) == (0, "torch lives\n", "")
