"""The pytest marker `nightly` for tests that take too long to run for every change, and the options --nightly and
--since.

A conftest imports the three hooks. A test marked `@pytest.mark.nightly("src/kernels", …)` runs with --nightly. With
--since REV, it also runs if one of the marker's paths is part of the path of a file that has changed since REV.
"""

from __future__ import annotations

import subprocess

import pytest

_CHANGED = pytest.StashKey["tuple[str, ...]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options --nightly and --since."""
    parser.addoption("--nightly", action="store_true", help="Also run the tests that are marked as nightly.")
    parser.addoption(
        "--since", metavar="REV", help="Also run the nightly tests that cover files changed since this revision."
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the `nightly` marker, and find the changed files."""
    config.addinivalue_line(
        "markers", "nightly(*paths): runs only with --nightly, or with --since if one of the paths has changed"
    )
    config.stash[_CHANGED] = ()
    if revision := config.getoption("--since"):
        command = ["git", "-C", str(config.rootpath), "diff", "--name-only", revision, "--"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            found = (done.stderr.strip().splitlines() or [f"status {done.returncode} of git"])[0]
            raise pytest.UsageError(f"--since {revision}: expected a revision of this checkout, found: {found}")
        config.stash[_CHANGED] = tuple(done.stdout.splitlines())


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a nightly test unless a command-line option selects it. The arguments of the marker are the paths that the
    test covers."""
    mark = item.get_closest_marker("nightly")
    if mark is None or item.config.getoption("--nightly"):
        return
    if not any(f"/{path}" in f"/{name}" for name in item.config.stash[_CHANGED] for path in mark.args):
        pytest.skip("runs only at night: give --nightly to run it")
