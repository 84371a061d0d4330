"""Whatever became of a file of ours, `import torch` works, and verl is patched, refused, or left alone whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
# As torch loads an entry point, and then verl is imported.
PROGRAM = """
print("torch lives", flush=True)
import json, sys, verl
activation = sys.modules.get("verl_npu.activation")
try: status = activation.status()
except Exception: status = {"active": False, "features": {}}
states = {p: entry["state"] for f in status["features"].values() for p, entry in f["patches"].items()}
print(json.dumps([status["active"], states]))
"""
LOADED = """
import sys, verl, verl_npu
files = (getattr(module, "__file__", None) for name, module in sys.modules.items() if name.startswith("verl_npu."))
print(*sorted(filter(None, files)))
"""
OFF = "torch lives\n[false, {}]\n"
SOME = ("verl_npu/features/fleet/manifests.py", "verl_npu/session.py")
NIGHTLY = pytest.mark.nightly(
    "verl_npu_entry.py", "verl_npu/activation.py", "verl_npu/session.py", "verl_npu/registry"
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of this project, with some verl and a torch_npu."""
    for name in ("verl_npu", "patches"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "verl_npu_entry.py", tmp_path)
    for name in ("verl", "torch_npu"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    return tmp_path


def run(copy: Path, *words: str, **variables: str) -> str:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "VERL_", "VIRTUAL_"))}
    command = [sys.executable, "-B", *words]
    done = subprocess.run(command, cwd=copy, env=kept | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def damaged(copy: Path, *files: str, **variables: str) -> dict[str, dict[str, object]]:
    script = PROJECT / "tests" / "damaging.py"
    words = (str(script), str(copy), "verl_npu", "verl_npu_entry:autoload", "torch.backends", PROGRAM, *files)
    return json.loads(run(copy, *words, **variables))


def faults(found: dict[str, dict[str, object]], *, refused: bool) -> dict[str, dict[str, object]]:
    """What ended otherwise than as if nothing were damaged, and otherwise than in one clear line."""
    whole = found.pop("")
    assert whole["status"] == 0, whole["err"]

    def is_good(ended: dict[str, object]) -> bool:
        if (ended["out"], ended["status"]) == (whole["out"], 0):
            return True
        lines = str(ended["err"]).splitlines()
        # Also where nobody insists, if what was done cannot be taken back.
        if ended["status"] == 1 and lines[-1].startswith("ImportError: verl-npu: "):
            return True
        return not refused and (ended["out"], ended["status"], len(lines)) == (OFF, 0, 1)

    return {name: ended for name, ended in found.items() if not is_good(ended)}


@pytest.mark.parametrize("variables", [{}, pytest.param({"VERL_NPU": "on"}, marks=NIGHTLY)], ids=str)
def test_damage_to_a_file_that_import_torch_loads_is_one_line(copy: Path, variables: dict[str, str]) -> None:
    found = damaged(copy, **variables)
    assert len(found) > 40
    assert all(str(ended["out"]).startswith("torch lives\n") for ended in found.values())
    assert faults(found, refused=bool(variables)) == {}


@pytest.mark.parametrize("variables", [{}, {"VERL_NPU": "on"}], ids=str)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=NIGHTLY)], ids=["some", "every"])
def test_damage_to_a_file_that_import_verl_loads_is_one_line(
    copy: Path, variables: dict[str, str], every: bool
) -> None:
    paths = run(copy, "-c", LOADED).split() if every else [str(copy / name) for name in SOME]
    found = damaged(copy, *(str(Path(path).relative_to(copy)) for path in paths), **variables)
    assert faults(found, refused=bool(variables)) == {}


def test_the_line_names_the_file_and_says_what_to_do(copy: Path) -> None:
    found = damaged(copy, "verl_npu/activation.py")["verl_npu/activation.py another text"]
    (line,) = str(found["err"]).splitlines()
    assert f"{copy}/verl_npu/activation.py cannot be loaded: SyntaxError: invalid syntax" in line
    assert line.endswith("install verl-npu again; verl-npu stays off in this process")


def test_where_it_is_switched_off_nothing_is_said(copy: Path) -> None:
    found = damaged(copy, "verl_npu/activation.py", VERL_NPU="off")
    assert {ended["err"] for ended in found.values()} == {""}


def test_a_patch_that_is_missing_is_damage_and_no_smaller_feature(copy: Path) -> None:
    found = damaged(copy, "verl_npu/features/attention/padding.py", VERL_NPU_STRICT="1")
    lines = str(found["verl_npu/features/attention/padding.py empty"]["err"]).splitlines()
    assert lines[-1].startswith("ImportError: verl-npu: this installation: expected every patch that its locks list")
