"""Loads the device once into the test process: torch takes a private device's name once and for all.

Tests that need another environment, or several ranks, start processes.
"""

from __future__ import annotations

import os

import pytest
from virtual_ascend import reporting, testing
from virtual_ascend.testing import fork_server
from virtual_ascend.testing.fixtures import npu as npu
from virtual_ascend.testing.fixtures import python as python
from virtual_ascend.testing.fixtures import torch_npu as torch_npu
from virtual_ascend.testing.nightly import pytest_addoption as pytest_addoption
from virtual_ascend.testing.nightly import pytest_configure as pytest_configure
from virtual_ascend.testing.nightly import pytest_runtest_setup as pytest_runtest_setup

# A package beside this one may extend virtual NPUs; these tests are of virtual NPUs alone.
os.environ["VERL_NPU"] = "off"
fork_server.install()


# First: pytest-xdist reads the marks in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort tests for `-n 2 --dist loadgroup --no-loadscope-reorder`.

    The tests that load the virtual device into their own process come first, and all in one process: torch's autograd
    engine must not have run before, as it counts the devices once. The other tests of a file stay together, because
    they share fixtures.
    """
    items.sort(key=lambda item: not _loads(item))
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group("device" if _loads(item) else str(item.path)))


def _loads(item: pytest.Item) -> bool:
    return "npu" in getattr(item, "fixturenames", ())


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the lines that were printed: each is printed once in a process, and the tests of many files share one."""
    monkeypatch.setattr(reporting, "_said", set())


@pytest.fixture
def from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each program in a new process, because the test is about the start of a process."""
    monkeypatch.setattr(testing, "STARTERS", [])
