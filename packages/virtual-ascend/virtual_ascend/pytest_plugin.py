"""`pytest --npus 2` runs the tests of a project in a process with two virtual NPUs."""

from __future__ import annotations

import os
import sys

import pytest

from .variables import NPUS


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --npus."""
    parser.addoption("--npus", type=int, metavar="N", help="run the tests on N virtual NPUs (SIMULATED)")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Request virtual NPUs for this process and its children before anything imports torch."""
    npus = early_config.known_args_namespace.npus
    if npus is None:
        return
    if npus < 1:
        raise pytest.UsageError(f"--npus: expected the number of virtual NPUs, at least 1; found {npus}")
    if "torch" in sys.modules:
        raise pytest.UsageError(
            f"--npus: another pytest plugin has already imported torch; set {NPUS.name}={npus} before you start pytest"
        )
    os.environ[NPUS.name] = str(npus)
    # `virtual_ascend.pth` does this if the variable is set as Python starts.
    from . import activation

    activation.expose()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Show in pytest's header that the NPUs are virtual."""
    npus = config.getoption("npus")
    return f"NPUs: {npus} virtual (SIMULATED)" if npus else None
