from __future__ import annotations

import sys
from pathlib import Path

import pytest
from virtual_ascend.testing import fork_server
from virtual_ascend.testing.nightly import pytest_addoption as pytest_addoption
from virtual_ascend.testing.nightly import pytest_configure as pytest_configure
from virtual_ascend.testing.nightly import pytest_runtest_setup as pytest_runtest_setup

# The scripts, and the test helpers that several distributions share there, are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
from testing.fixtures import heeds_ctrl_c as heeds_ctrl_c
from testing.fixtures import importable as importable
from testing.fixtures import in_order
from testing.fixtures import interpreter as interpreter
from testing.fixtures import make_wheel as make_wheel
from testing.fixtures import no_progress as no_progress
from testing.fixtures import nothing_was_said as nothing_was_said
from testing.fixtures import source as source
from testing.fixtures import sources as sources
from testing.fixtures import wheel as wheel

fork_server.install()


# First: pytest-xdist reads the marks in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests into the order in which processes may share them out."""
    in_order(config, items, Path(__file__).parent / "simulation")
