from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of the virtual device first.

    They load it into this process, and torch's autograd engine must not have run before: it counts the devices once.
    """
    items.sort(key=lambda item: "virtual" not in item.path.parts)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(PROJECT)]
    subprocess.run(command, check=True)
    (made,) = folder.glob("verl_npu-*.whl")
    return made
