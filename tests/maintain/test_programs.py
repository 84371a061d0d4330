"""`python -m verl_npu.maintain` on edited copies of an installed verl, which is never imported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from testing.commands import Run, edit, maintain, pristine, tree
from testing.interpreter import python

from verl_npu.features import locks_folder

__all__ = ["maintain", "pristine", "tree"]  # fixtures

MAIN = "verl/trainer/main_ppo.py"
EVIL = "*, x, y='\x1b[31m\u202e')"


@pytest.mark.nightly("verl_npu/cli", "verl_npu/maintain")
def test_no_line_of_a_source_commands_the_terminal(maintain: Run, tree: Path) -> None:
    edit(
        tree,
        MAIN,
        "def run_ppo(config, task_runner_class=None)",
        f"def run_ppo(config, task_runner_class=None, {EVIL}",
    )
    for form in ("text", "markdown"):
        status, output = maintain("drift", "--source", str(tree), "--format", form)
        assert status == 1
        assert "\x1b" not in output
        assert "\u202e" not in output
        assert "\\x1b[31m" in output


def test_a_lock_is_written_beside_the_others_where_it_is_asked_for(maintain: Run, tree: Path) -> None:
    locks = tree / "locks"
    status, output = maintain(
        "lock", "--pin", "v9", "--revision", "0123abc", "--source", str(tree), "--output", str(locks)
    )
    assert status == 0, output
    made = json.loads((locks / "verl" / "v9" / "lock.json").read_text())
    known = json.loads((locks_folder() / "verl" / "v0.6.1" / "lock.json").read_text())
    assert (made["pin"], made["revision"]) == ("v9", "0123abc")
    assert made["patches"].keys() == known["patches"].keys()


@pytest.mark.parametrize("words", [("drift",), ("lock", "--pin", "x", "--output", "out")], ids=lambda words: words[0])
def test_a_source_that_is_none_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    done = python("-m", "verl_npu.maintain", *words, "--source", str(tmp_path / "\x1bnone"), cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "\\x1bnone: expected a source tree or a wheel" in line
    assert not (tmp_path / "out").exists()
