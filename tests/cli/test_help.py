"""The command's help, its environment variables, its completion, and `python -m verl_npu`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from testing.interpreter import python

from verl_npu import environment
from verl_npu.cli import MOMENTS, main
from verl_npu.variable import USER
from verl_npu.version import __version__

from .conftest import Run

COMMANDS = main.list_commands(click.Context(main))


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_fits_80_columns(run: Run, command: tuple[str, ...]) -> None:
    status, output = run(*command, "--help")
    assert status == 0
    assert [line for line in output.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_calls_that_are_understood(run: Run, command: str) -> None:
    examples = examples_of(run(command, "--help")[1])
    assert examples
    for example in examples:
        program, *words = shlex.split(example)
        assert program == "verl-npu"
        # Parses the whole call without running it.
        name, chosen, rest = main.resolve_command(main.make_context("verl-npu", list(words)), list(words))
        assert name == command
        chosen.make_context(name, rest)


def examples_of(shown: str) -> list[str]:
    return [line.strip() for line in re.split(r"^  Examples?:\n", shown, flags=re.MULTILINE)[-1].splitlines()]


def test_the_help_has_every_command_with_an_example_by_the_moment(run: Run) -> None:
    shown = run("--help")[1]
    # Commands of other distributions are shown only where these are installed.
    here = {moment: commands for moment, commands in MOMENTS.items() if f"\n{moment}:\n" in shown}
    assert {moment for moment, commands in MOMENTS.items() if {*commands} & {*COMMANDS}} <= here.keys()
    places = [shown.index(f"\n{moment}:\n") for moment in here]
    assert places == sorted(places)
    for commands, first, last in zip(here.values(), places, [*places[1:], len(shown)], strict=True):
        for name, example in ((name, example) for name, example in commands.items() if name in COMMANDS):
            assert re.search(rf"^  {name} +\S.*\n +{re.escape(example)}$", shown[first:last], re.MULTILINE), name
    assert {*MOMENTS} >= {"Before a run", "During a run", "After a run"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_a_command_is_one_of_its_own(run: Run, name: str) -> None:
    own = examples_of(run(name, "--help")[1])
    assert {commands[name] for commands in MOMENTS.values() if name in commands} <= {*own}


def test_a_command_imports_no_other(tmp_path: Path) -> None:
    program = "import sys; from verl_npu.cli import main\nmain(['env'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    loaded = {name for name in done.stdout.splitlines()[-1].split() if name.startswith("verl_npu_workbench.")}
    assert {name.split(".")[2] for name in loaded}.isdisjoint({"plan", "rehearse", "doctor", "diagnosis", "codes"})


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
    result = python("-m", "verl_npu", "--version")
    assert result.stdout == f"verl-npu, version {__version__}\n"


def complete(*words: str) -> list[str]:
    """Return the completions of the last word that click's script for bash would offer."""
    *before, begun = words
    completion = BashComplete(main, {}, "verl-npu", "_VERL_NPU_COMPLETE")
    return [item.value for item in completion.get_completions(before, begun)]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("ch",), "check"),
        (("explain", "fle"), "fleet"),
        (("explain", "fleet.comp"), "fleet.compare_processes_before_training"),
        (("check", "--source", "inst"), "installed"),
    ],
)
def test_the_shell_completes(words: tuple[str, ...], offered: str) -> None:
    assert offered in complete(*words)


def test_the_help_says_how_completion_is_switched_on(run: Run) -> None:
    (line,) = (line for line in run("--help")[1].splitlines() if "_VERL_NPU_COMPLETE" in line)
    script = re.search(r"\$\((.*) verl-npu\)", line)
    assert script
    name, _, value = script[1].partition("=")
    result = python("-m", "verl_npu", **{name: value})
    assert "complete -o nosort -F _verl_npu_completion verl-npu" in result.stdout


def test_colours_are_for_terminals_that_want_them() -> None:
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
    if "setup" not in COMMANDS:
        pytest.skip("a command of verl-npu-workbench has such a choice")
    status, output = run("setup")
    assert status == 2
    assert "\\t" not in output
    assert "v0.9.1" in output
