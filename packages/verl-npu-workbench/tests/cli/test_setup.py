from __future__ import annotations

import json
from pathlib import Path

import pytest

from verl_npu.environment import VARIABLES
from verl_npu.variable import USER

from .conftest import Run


def test_without_a_pin_the_variables_are_listed(run: Run) -> None:
    status, printed = run("env")
    assert status == 0
    assert all(variable.name in printed for variable in VARIABLES.values() if variable.audience == USER)


def test_with_a_pin_the_commands_are_printed_in_order_with_their_traps(run: Run) -> None:
    status, printed = run("setup", "--pin", "v0.7.1", "--arch", "x86", "--npu", "a3")
    assert status == 0
    assert printed.startswith("#!/usr/bin/env bash\n")
    assert 'pip install "torch==2.8.0+cpu"' in printed
    assert "#    Trap: its wheels on the package index are built for A2" in printed


def test_the_published_images_versions_are_those_of_its_document(run: Run) -> None:
    status, printed = run("setup", "--pin", "796871d7", "--for", "image", "--json")
    content = json.loads(printed)
    commands = [command for step in content["steps"] for command in step["commands"]]
    assert status == 0
    assert 'pip install "torch==2.7.1"' in commands
    for revision in ("3821787aa7", "1de16ead8e", "1cdd0abd75"):
        assert any(command.endswith(f" checkout {revision}") for command in commands)
    assert "transformers @ git+https://github.com/huggingface/transformers@836570e925" in (
        content["files"]["requirements.txt"].splitlines()
    )
    assert not any(name.startswith("Dockerfile") for name in content["files"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--pin", "v0.9.1", "--for", "image"],
            "with --pin v0.9.1, expected one of documents; only 796871d7 has image",
        ),
        (["--for", "image"], "Missing option '--pin'"),
        (
            ["--pin", "v0.8.0", "--npu", "a5"],
            "expected one of the pins whose documents cover this NPU: v0.9.0, v0.9.1, 1dda039b",
        ),
    ],
)
def test_an_environment_that_a_pin_does_not_have_is_refused(run: Run, arguments: list[str], said: str) -> None:
    status, printed = run("setup", *arguments)
    assert status == 2
    assert said in " ".join(printed.split())


def test_all_files_are_written_where_asked(run: Run, tmp_path: Path) -> None:
    status, printed = run("setup", "--pin", "v0.8.0", "--npu", "a3", "--output", str(tmp_path / "made"))
    names = {path.name for path in (tmp_path / "made").iterdir()}
    assert status == 0
    assert names == {"install.sh", "requirements.txt", "constraints.txt", "Dockerfile.a3", "docker-run.sh"}
    assert {Path(line).name for line in printed.splitlines()} == names


def test_a_file_of_the_users_is_not_written_over(run: Run, tmp_path: Path) -> None:
    asked = ("setup", "--pin", "v0.8.0", "--output", str(tmp_path))
    assert run(*asked)[0] == 0
    assert run(*asked)[0] == 0
    (tmp_path / "install.sh").write_text("mine")
    status, printed = run(*asked)
    assert status == 2
    assert "found the files install.sh exist in it, with different content" in " ".join(printed.split())
    assert (tmp_path / "install.sh").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, printed = run("setup", "--pin", "v0.6.1", "--output", str(tmp_path / "file"))
    assert status == 2
    assert printed.startswith("verl-npu: --output")
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--npu", "a3", "--format", "docker-run"], "--npu"),
        (["--json", "--format", "docker-run"], "--json"),
        (["--output", "x", "--format", "rayjob"], "--output"),
        (["--server", "a3"], "--server"),
        (["--nodes", "2"], "--nodes"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(run: Run, arguments: list[str], option: str) -> None:
    status, printed = run("setup", "--pin", "v0.9.1", *arguments)
    assert status == 2
    assert f"{option} cannot be used with --format" in printed
