"""The real torch_npu, from the wheel that belongs to the torch of these tests: programs import it from a folder."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from pathlib import Path

import pytest
from virtual_ascend.testing import run
from virtual_ascend.testing.fixtures import Run


@pytest.fixture(scope="session")
def installed() -> None:
    """Skip where virtual-ascend is not installed, so that none of its modules comes before torch_npu."""
    if not any(str(path).endswith("virtual_ascend.pth") for path in importlib.metadata.files("virtual-ascend") or ()):
        pytest.skip("virtual-ascend is not installed, so that nothing of it comes before torch_npu")


@pytest.fixture(scope="session")
def version(torch_npu: Path) -> str:
    """Return the version of that torch_npu."""
    (info,) = torch_npu.glob("torch_npu-*.dist-info")
    return info.name.removeprefix("torch_npu-").removesuffix(".dist-info")


@pytest.fixture(scope="session")
def settings(installed: None, torch_npu: Path) -> dict[str, str]:
    """Return the variables of a process with the real torch_npu on virtual NPUs."""
    path = os.pathsep.join(filter(None, [str(torch_npu), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "VIRTUAL_ASCEND_TORCH_NPU": "real"}


@pytest.fixture(scope="session")
def real(settings: dict[str, str]) -> Run:
    """Return a function that runs a program with two virtual NPUs under the real torch_npu, in a new process."""

    def start(code: str, timeout: float = 300, **changes: str | None) -> subprocess.CompletedProcess[str]:
        return run(code, timeout, **{**settings, **changes})

    return start
