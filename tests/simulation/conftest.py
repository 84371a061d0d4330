"""The device is loaded once into the test process: torch takes a private device's name once and for all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from virtual_ascend.testing import NoWheelError, install_torch_npu
from virtual_ascend.testing.fixtures import npu as npu
from virtual_ascend.testing.fixtures import python as python


@pytest.fixture(scope="session")
def torch_npu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the torch_npu for the installed torch; up to 44 MB, once in a session."""
    folder = tmp_path_factory.mktemp("torch_npu")
    try:
        install_torch_npu(folder)
    except NoWheelError as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture(scope="session")
def version(torch_npu: Path) -> str:
    """The version of that torch_npu."""
    (info,) = torch_npu.glob("torch_npu-*.dist-info")
    return info.name.removeprefix("torch_npu-").removesuffix(".dist-info")


@pytest.fixture(scope="session")
def settings(torch_npu: Path) -> dict[str, str]:
    """The variables of a process with the real torch_npu on virtual NPUs."""
    path = os.pathsep.join(filter(None, [str(torch_npu), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "VIRTUAL_ASCEND_TORCH_NPU": "real"}
