"""Several distributions contribute commands to `verl-npu`; a broken one does not break the others."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

import click
import pytest
from click.testing import CliRunner

from verl_npu import cli
from verl_npu.cli import COMMANDS, GROUP, WORKBENCH

from .conftest import Run

Bring = Callable[..., None]


@click.command()
def greet() -> None:
    """Say good day.

    Exit status: 0.
    """
    click.echo("good day")


@pytest.fixture
def bring(monkeypatch: pytest.MonkeyPatch) -> Bring:
    """Return a function that registers only these commands, by name and location, as entry points of others."""

    def only(**commands: str) -> None:
        points = [metadata.EntryPoint(name, value, GROUP) for name, value in commands.items()]
        monkeypatch.setattr(
            cli.metadata, "entry_points", lambda group: [each for each in points if each.group == group]
        )

    return only


def test_a_command_of_another_distribution_runs_and_is_in_the_help(run: Run, bring: Bring) -> None:
    bring(greet=f"{__name__}:greet")
    assert run("greet") == (0, "good day\n")
    assert "Commands of other packages:\n  greet  Say good day." in run("--help")[1]


@pytest.mark.parametrize("name", WORKBENCH)
def test_without_the_workbench_one_line_says_what_to_install(run: Run, bring: Bring, name: str) -> None:
    bring()
    status, output = run(name, "run.sh")
    assert status == 2
    (line,) = output.splitlines()
    assert line.startswith(f"verl-npu: verl-npu {name}: this command needs the distribution verl-npu-workbench")
    assert "pip install 'verl-npu[workbench]'" in line


def test_without_the_workbench_the_help_has_the_plugins_commands_and_names_the_others(run: Run, bring: Bring) -> None:
    bring()
    status, output = run("--help")
    assert status == 0
    assert [name for name in COMMANDS if f"\n  {name} " not in output] == []
    assert "pip install 'verl-npu[workbench]' adds compare, doctor," in " ".join(output.split())


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("no_such_module_anywhere:command", "ModuleNotFoundError"),
        (f"{__name__}:no_such_name", "AttributeError"),
    ],
)
def test_a_command_that_cannot_be_loaded_takes_no_other_with_it(
    run: Run, bring: Bring, value: str, found: str
) -> None:
    bring(broken=value, greet=f"{__name__}:greet")
    status, output = run("broken")
    assert status == 2
    (line,) = output.splitlines()
    assert found in line
    assert run("greet")[0] == 0
    shown = run("--help")[1]
    assert "broken  cannot be loaded" in shown
    assert "greet   Say good day." in shown


def test_nobody_takes_the_place_of_a_command_of_the_plugin(run: Run, bring: Bring) -> None:
    bring(env=f"{__name__}:greet")
    assert "good day" not in run("env")[1]


def test_an_unknown_command_gets_the_nearest_name(run: Run, bring: Bring) -> None:
    bring()
    status, output = run("chek")
    assert status == 2
    assert "check" in output


@pytest.mark.parametrize(
    ("typed", "offered"), [("verl-npu ", "greet"), ("verl-npu broken ", ""), ("verl-npu plan ", "")]
)
def test_the_tab_key_offers_what_can_be_loaded(bring: Bring, typed: str, offered: str) -> None:
    bring(broken="no_such_module_anywhere:command", greet=f"{__name__}:greet")
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_VERL_NPU_COMPLETE": "bash_complete"}
    result = CliRunner().invoke(cli.main, prog_name="verl-npu", env=words, catch_exceptions=False)
    assert offered in result.output
    assert "broken" not in result.output
