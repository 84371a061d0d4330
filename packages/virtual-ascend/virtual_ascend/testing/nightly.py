"""Tests that are too long for each change: the mark `nightly`, and the options --nightly and --since.

A conftest imports the three hooks. A test that is marked `@pytest.mark.nightly("src/kernels", …)` runs with --nightly,
or with --since REV if a file whose path has that in it, from a folder on, is not as it was at that revision.
"""

from __future__ import annotations

import subprocess

import pytest

__all__ = ["pytest_addoption", "pytest_configure", "pytest_runtest_setup"]

_CHANGED = pytest.StashKey["tuple[str, ...]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --nightly and --since."""
    parser.addoption("--nightly", action="store_true", help="run the tests that are marked nightly, too")
    parser.addoption(
        "--since", metavar="REV", help="of the nightly tests run those too that test what has changed since a revision"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, and find out what has changed."""
    config.addinivalue_line(
        "markers", "nightly(*paths): only with --nightly, or with --since where one of the paths has changed"
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
    """Skip what is only for the night: the mark's arguments are the paths that it tests."""
    mark = item.get_closest_marker("nightly")
    if mark is None or item.config.getoption("--nightly"):
        return
    if not any(f"/{path}" in f"/{name}" for name in item.config.stash[_CHANGED] for path in mark.args):
        pytest.skip("runs every night: give --nightly")
