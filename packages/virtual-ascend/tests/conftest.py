"""The device is loaded once into the test process: torch takes a private device's name once and for all. Tests that
need another environment, or several ranks, start processes."""

from __future__ import annotations

import os
from types import ModuleType

import pytest
from virtual_ascend.testing import NPUS_OF_A_TEST, run

from .processes import Run


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --nightly."""
    parser.addoption("--nightly", action="store_true", help="run the tests that are marked nightly, too")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is only for the night."""
    if item.get_closest_marker("nightly") and not item.config.getoption("--nightly"):
        pytest.skip("runs every night: give --nightly")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests in the order in which processes may share them out (`-n 2 --dist loadgroup --no-loadscope-reorder`).

    The tests that load the virtual device into their own process are first, and all in one: torch's autograd engine
    must not have run before, as it counts the devices once. A file of other tests stays together, because its fixtures
    are shared.
    """
    items.sort(key=lambda item: not _loads(item))
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group("device" if _loads(item) else str(item.path)))


def _loads(item: pytest.Item) -> bool:
    return "npu" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def npu() -> ModuleType:
    """torch, with two virtual NPUs in this process."""
    before = dict(os.environ)
    os.environ["VIRTUAL_ASCEND"] = str(NPUS_OF_A_TEST)
    os.environ.pop("ASCEND_RT_VISIBLE_DEVICES", None)
    import torch
    import virtual_ascend

    virtual_ascend.load()
    torch.npu.init()  # from here on the visible NPUs are fixed, whatever a test does to the environment
    # The tests of everything else run later in this process, and start processes that must not inherit this.
    os.environ.clear()
    os.environ.update(before)
    return torch


@pytest.fixture(scope="session")
def python() -> Run:
    """Run a program with two virtual NPUs in a process of its own."""
    return run
