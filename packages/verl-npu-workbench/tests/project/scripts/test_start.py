from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import environment, pins
from harness.environment import Recipe

from verl_npu import progress

SCRIPTS = environment.PROJECT / "scripts"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("plan", ("--pin", "--largest-micro-batch")),
        ("rehearse", ("--verl PATH", "--plan-only")),
        ("quickstart", ("--pin",)),
        ("smoke", ("--job",)),
        ("test", ("pytest",)),
    ],
)
def test_help_comes_before_anything_is_installed(name: str, said: tuple[str, ...], tmp_path: Path) -> None:
    # A user's Python has no packages and no environment of ours.
    variables = {**os.environ, "VERL_NPU_VENVS": str(tmp_path), "PYTHONPATH": ""}
    command = [sys.executable, "-S", str(SCRIPTS / f"{name}.py"), "--help"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [word for word in said if word not in done.stdout] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--help",), "用于训练的 NPU 个数"),
        (("--npus", "none"), "quickstart.sh: --npus：应为不小于 1 的整数，实际是 'none'"),
    ],
)
def test_a_script_speaks_the_language_of_the_user(arguments: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-S", str(SCRIPTS / "quickstart.py"), *arguments]
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("LC_", "VERL_NPU"))}
    utf8 = {"PYTHONPATH": "", "PYTHONIOENCODING": "utf-8"}
    spoken, english = (
        subprocess.run(command, env=environ | utf8 | {"LANG": locale}, capture_output=True, text=True, check=False)
        for locale in ("zh_CN.UTF-8", "C.UTF-8")
    )
    assert said in spoken.stdout + spoken.stderr
    assert not any("\u4e00" <= letter <= "\u9fff" for letter in english.stdout + english.stderr)
    assert spoken.returncode == english.returncode


def test_an_install_says_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip = tmp_path / ".venv" / "bin" / "python"
    pip.parent.mkdir(parents=True)
    pipe = tmp_path / "until"
    pip.write_text(f"#!/bin/bash\nread -r < {pipe}\n")
    pip.chmod(0o755)
    os.mkfifo(pipe)
    writes = progress._Shown._write

    def note(shown: progress._Shown, text: str) -> None:
        writes(shown, text)
        # pip may end once the progress was printed. Later progress has no reader in the pipe to wait for.
        monkeypatch.setattr(progress._Shown, "_write", writes)
        pipe.write_text("\n")

    monkeypatch.setattr(progress, "EVERY", 0.01)
    monkeypatch.setattr(progress._Shown, "_write", note)
    monkeypatch.setattr(Recipe, "folder", tmp_path / ".venv")
    recipe = Recipe(pins.find(pins.DEFAULT), None, "4.52.4", virtual=True)
    environment._pip(recipe, "torch==2.7.1")
    assert "verl-npu: pip install torch==2.7.1, " in capsys.readouterr().err
