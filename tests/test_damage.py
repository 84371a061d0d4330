"""A damaged file of ours does not affect `import torch`, and verl is patched, refused, or left alone as a whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
# Loads the entry point as torch does, and then imports verl.
PROGRAM = """
import verl_npu_entry
verl_npu_entry.torch_backends()
print("torch lives", flush=True)
import verl
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of this project, with some verl and a torch_npu."""
    for name in ("verl_npu", "patches"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "verl_npu_entry.py", tmp_path)
    for name in ("verl", "torch_npu"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    return tmp_path


def run(copy: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "VERL_", "VIRTUAL_"))}
    command = [sys.executable, "-B", "-c", PROGRAM]
    return subprocess.run(command, cwd=copy, env=kept | variables, capture_output=True, text=True, check=False)


# The files that `import torch` loads, that `import verl` loads first, and that it loads in the middle.
@pytest.mark.parametrize("file", ["activation.py", "session.py", "features/fleet/manifests.py"])
def test_a_damaged_file_is_one_line_that_names_it_and_says_what_to_do(copy: Path, file: str) -> None:
    (copy / "verl_npu" / file).write_text("no Python at all")
    done = run(copy)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "torch lives"), done.stderr
    (line,) = done.stderr.splitlines()
    assert f"{copy}/verl_npu/{file} cannot be loaded: SyntaxError: invalid syntax" in line
    assert line.endswith("install verl-npu again; verl-npu stays off in this process")


@pytest.mark.parametrize("file", ["activation.py", "session.py"])
def test_who_insists_gets_no_unpatched_verl(copy: Path, file: str) -> None:
    (copy / "verl_npu" / file).unlink()
    done = run(copy, VERL_NPU="on")
    assert (done.returncode, done.stdout) == (1, "torch lives\n")
    assert done.stderr.splitlines()[-1].startswith("ImportError: verl-npu: ")


@pytest.mark.parametrize("file", ["__init__.py", "damage.py"])
def test_damage_to_what_tells_of_damage_is_one_line_too(copy: Path, file: str) -> None:
    (copy / "verl_npu" / file).write_text("no Python at all")
    done = run(copy)
    assert (done.returncode, done.stdout) == (0, "torch lives\n"), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("verl-npu: verl_npu cannot be loaded: SyntaxError: invalid syntax")
    assert run(copy, VERL_NPU="off").stderr == ""
    done = run(copy, VERL_NPU_STRICT="1")
    assert (done.returncode, done.stdout) == (1, "torch lives\n")
    assert "import of verl halted" in done.stderr


def test_where_it_is_switched_off_nothing_is_said(copy: Path) -> None:
    (copy / "verl_npu" / "activation.py").write_bytes(b"")
    assert run(copy, VERL_NPU="off").stderr == ""


def test_a_patch_that_is_missing_is_damage_and_no_smaller_feature(copy: Path) -> None:
    (copy / "verl_npu" / "features" / "attention" / "padding.py").write_bytes(b"")
    done = run(copy, VERL_NPU_STRICT="1")
    assert done.returncode == 1
    said = "ImportError: verl-npu: this installation: some files of the package are probably missing or truncated"
    assert done.stderr.splitlines()[-1].startswith(said)


@pytest.mark.parametrize("share", [0, 2])
@pytest.mark.parametrize(
    ("words", "file", "status", "said"),
    [
        ("check", "features/engine_names/names.json", 2, "engine_names/__init__.py cannot be loaded: JSONDecodeError"),
        ("explain device", "locale/zh_CN/LC_MESSAGES/verl_npu.mo", 0, "the translation of verl_npu cannot be read: "),
    ],
    ids=["data", "a translation"],
)
def test_a_file_that_was_cut_short_is_one_line_of_a_command(
    copy: Path, share: int, words: str, file: str, status: int, said: str
) -> None:
    damaged = copy / "verl_npu" / file
    os.truncate(damaged, damaged.stat().st_size // share if share else 0)
    command = [sys.executable, "-B", "-m", "verl_npu", *words.split()]
    chinese = os.environ | {"LC_ALL": "zh_CN.UTF-8"}
    done = subprocess.run(command, cwd=copy, env=chinese, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    (line,) = done.stderr.splitlines()
    assert said in line
    assert "install " in line
