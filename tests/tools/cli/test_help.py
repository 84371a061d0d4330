"""What the command says of itself: help, environment variables, completion, and that it is there as a module."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from verl_npu import environment
from verl_npu.tools.cli import main
from verl_npu.variable import USER
from verl_npu.version import __version__

from .conftest import Run

COMMANDS = sorted(main.commands)


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_fits_80_columns(run: Run, command: tuple[str, ...]) -> None:
    status, output = run(*command, "--help")
    assert status == 0
    assert [line for line in output.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_ends_with_calls_that_are_understood(run: Run, command: tuple[str, ...]) -> None:
    _, output = run(*command, "--help")
    examples = re.split(r"^  Examples?:\n", output, flags=re.MULTILINE)[-1].splitlines()
    assert examples
    for example in examples:
        program, *words = shlex.split(example)
        assert program == "verl-npu"
        # Parses the whole call, and runs nothing of it.
        name, chosen, rest = main.resolve_command(main.make_context("verl-npu", list(words)), list(words))
        assert not command or (name,) == command
        chosen.make_context(name, rest)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_the_exit_status_means(run: Run, name: str) -> None:
    assert "Exit status: 0" in run(name, "--help")[1]


def test_the_summaries_of_the_commands_are_not_cut(run: Run) -> None:
    assert [line for line in run("--help")[1].splitlines()[1:] if line.endswith("...")] == []


def test_env_lists_the_variables_of_users_and_what_is_set(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VERL_NPU_STRICT", "1")
    status, output = run("env")
    assert status == 0
    names = [line.split()[0] for line in output.splitlines() if not line.startswith(" ")]
    assert names == [name for name, variable in environment.VARIABLES.items() if variable.audience == USER]
    assert [line for line in output.splitlines() if "is set to" in line] == ["VERL_NPU_STRICT  is set to '1'"]
    assert all(len(line) <= 80 for line in output.splitlines())


def test_the_package_is_a_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "verl_npu", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"verl-npu, version {__version__}\n"


def complete(*words: str) -> list[str]:
    """What is offered for the last word, by what click's script for bash calls."""
    *before, begun = words
    completion = BashComplete(main, {}, "verl-npu", "_VERL_NPU_COMPLETE")
    return [item.value for item in completion.get_completions(before, begun)]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("ch",), "check"),
        (("explain", "fle"), "fleet"),
        (("explain", "fleet.comp"), "fleet.compare_processes_before_training"),
        (("lock", "--pin", "v0.7"), "v0.7.1"),
        (("lock", "--upstream", "hydra", "--pin", "1"), "1.3.2"),
        (("check", "--source", "inst"), "installed"),
    ],
)
def test_the_shell_completes(words: tuple[str, ...], offered: str) -> None:
    assert offered in complete(*words)


def test_the_pins_of_another_upstream_are_not_offered() -> None:
    assert "".join(complete("lock", "--upstream", "hydra", "--pin", "v")) == ""


def test_the_help_says_how_completion_is_switched_on(run: Run) -> None:
    (line,) = (line for line in run("--help")[1].splitlines() if "_VERL_NPU_COMPLETE" in line)
    script = re.search(r"\$\((.*) verl-npu\)", line)
    assert script
    name, _, value = script[1].partition("=")
    result = subprocess.run(
        [sys.executable, "-m", "verl_npu"], env={**os.environ, name: value}, capture_output=True, text=True, check=True
    )
    assert "complete -o nosort -F _verl_npu_completion verl-npu" in result.stdout


def test_colours_are_for_terminals_that_want_them(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    for no_color, coloured in (("", True), ("1", False)):
        read, write = pty.openpty()
        subprocess.run(
            [sys.executable, "-m", "verl_npu", "explain", "fleet"],
            env={**os.environ, "NO_COLOR": no_color},
            stdout=write,
            check=True,
        )
        os.close(write)
        assert (b"\x1b[1m" in os.read(read, 1 << 16)) is coloured
        os.close(read)


def test_a_choice_that_is_missing_is_listed_without_escapes(run: Run) -> None:
    status, output = run("container")
    assert status == 2
    assert "\\t" not in output
    assert "v0.9.1" in output
