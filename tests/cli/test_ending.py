"""How commands end: each status has one meaning, there is no traceback, and a closed pipe loses nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from verl_npu import cli
from verl_npu.findings import Status, error, exit_status, ok, skipped, warning

from .conftest import Run


def test_a_status_says_what_was_found() -> None:
    fine, left_out = ok("a", "1"), skipped("b", "not here")
    odd, bad = (make("c", "2", why="", fix="") for make in (warning, error))
    found = [exit_status(each) for each in ([fine, left_out], [odd], [fine, odd, bad], [left_out], [])]
    assert found == [Status.FINE, Status.FINE, Status.FOUND, Status.NOT_JUDGED, Status.NOT_JUDGED]


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (FileNotFoundError(2, "No usable temporary directory found"), "No usable temporary directory found"),
        (NotADirectoryError(20, "Not a directory", "/x/file"), "/x/file: Not a directory"),
        (OSError(28, "No space left on device", "/x/plan.json"), "/x/plan.json: No space left on device"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, raised: OSError, said: str
) -> None:
    def refuse(*words: object, **more: object) -> object:
        raise raised

    monkeypatch.setattr("verl_npu.cli.check.upstreams.judged_tree", refuse)
    status, output = run("check")
    assert (status, len(output.splitlines())) == (2, 1)
    assert said in output


def test_in_a_zip_file_it_is_said_that_it_cannot_be_run_there(tmp_path: Path) -> None:
    project = Path(cli.__file__).parents[2]
    with zipfile.ZipFile(tmp_path / "ours.zip", "w") as made:
        for path in (project / "verl_npu").rglob("*.*"):
            if "__pycache__" not in path.parts:
                made.write(path, path.relative_to(project))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "ours.zip")}
    command = [sys.executable, "-m", "verl_npu", "check"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("it cannot run from inside a zip file")


def test_what_is_on_pythons_path_is_there_in_every_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "main", lambda **more: None)
    monkeypatch.setattr(cli.terminal, "ignore_broken_pipes", lambda: None)
    monkeypatch.setenv("PYTHONPATH", ":.:verl:/packages")
    cli.run()
    here = os.getcwd()
    assert os.environ["PYTHONPATH"] == f"{here}:{here}/verl:/packages"


def test_an_error_of_ours_cannot_be_taken_for_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**more: object) -> object:
        raise KeyError("ours")

    monkeypatch.setattr(cli, "main", fail)
    monkeypatch.setattr(cli.terminal, "ignore_broken_pipes", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.run()
    assert ended.value.code == Status.NOT_JUDGED
    assert "KeyError: 'ours'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("explain", "device"), ("env",), ("--help",), ("check", "--json", "--source", "/no")]
)
def test_a_command_whose_output_nobody_reads_comes_to_its_end(words: Sequence[str]) -> None:
    command = [sys.executable, "-m", "verl_npu", *words]
    read = subprocess.run(command, capture_output=True, check=False)
    reader, writer = os.pipe()
    os.close(reader)
    unread = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert unread.returncode == read.returncode
    assert b"Traceback" not in unread.stderr
    assert b"Broken" not in unread.stderr
