"""test.sh runs the tests of each distribution, the last one's beside the others'."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.pins import SCRIPTS

# Not imported by its name, which is also the name of the package of Python's own tests.
script = runpy.run_path(str(SCRIPTS / "test.py"))
run_tests, status_of = script["run_tests"], script["status_of"]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return a program that prints its folder's name, and exits with the status that the folder contains."""
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "in $(basename $PWD)"\nexit $(cat status)\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str, int], Path]:
    def make(name: str, status: int) -> Path:
        made = tmp_path / name
        made.mkdir()
        (made / "status").write_text(str(status))
        return made

    return make


def test_all_run_and_the_last_ones_output_comes_last(
    python: Path, folder: Callable[[str, int], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    folders = {folder("first", 1): ["-q"], folder("second", 0): ["-q"], folder("third", 5): ["-q"]}
    assert run_tests(python, {}, folders) == [1, 0, 5]
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("in ")]
    assert said == ["in first", "in second", "in third"]


def test_a_failure_beside_the_others_is_reported(
    python: Path, folder: Callable[[str, int], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_tests(python, {}, {folder("first", 0): [], folder("second", 1): []}) == [0, 1]
    assert capfd.readouterr().err == "test.sh: FAILED: pytest\n"


def test_an_interrupt_ends_what_runs_beside(
    python: Path, folder: Callable[[str, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(run_tests.__globals__, "run", interrupted)
    python.write_text("#!/bin/sh\nsleep 3\ntouch done\n")
    last = folder("last", 0)
    with pytest.raises(KeyboardInterrupt):
        run_tests(python, {}, {folder("first", 0): [], last: []})
    assert not (last / "done").exists()


@pytest.mark.parametrize(("statuses", "status"), [([0, -9], 9), ([0, 1], 1), ([0, 5], 0), ([5, 5], 5)])
def test_a_signal_is_a_failure_and_a_distribution_without_the_test_is_not(statuses: list[int], status: int) -> None:
    assert status_of(statuses) == status
