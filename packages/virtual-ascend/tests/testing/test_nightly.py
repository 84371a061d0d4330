"""Tests that are marked nightly run with --nightly, or if the code that they test has changed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HOOKS = """
from virtual_ascend.testing.nightly import pytest_addoption, pytest_configure, pytest_runtest_setup
"""
TESTS = """
import pytest

@pytest.mark.nightly("src/kernels")
def test_long(): pass

@pytest.mark.nightly
def test_longer(): pass

def test_short(): pass
"""
Tests = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def tests(tmp_path: Path) -> Tests:
    """Return a function that runs tests of a checkout in which src/kernels/add.py has changed since HEAD."""
    for name, text in {"pytest.ini": "[pytest]", "conftest.py": HOOKS, "test_it.py": TESTS}.items():
        (tmp_path / name).write_text(text)
    changed = tmp_path / "src/kernels/add.py"
    changed.parent.mkdir(parents=True)
    changed.touch()
    author = ("-c", "user.name=n", "-c", "user.email=e")
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    changed.write_text("1")

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ([], "1 passed, 2 skipped"),
        (["--nightly"], "3 passed"),
        (["--since", "HEAD"], "2 passed, 1 skipped"),
    ],
    ids=["by day", "at night", "after a change"],
)
def test_nightly_tests_run_by_option_or_after_a_change(tests: Tests, options: list[str], outcome: str) -> None:
    assert outcome in tests(*options).stdout


def test_another_revision_is_refused_in_a_line(tests: Tests) -> None:
    done = tests("--since", "nowhere")
    assert done.returncode == 4
    assert done.stderr.startswith("ERROR: --since nowhere: expected a revision of this checkout, found: fatal: ")
