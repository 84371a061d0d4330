"""The virtual torch_npu disarms children as the real one does."""

from __future__ import annotations

import pytest
from virtual_ascend.switch import restores
from virtual_ascend.testing.fixtures import Run

NIGHTLY = pytest.mark.nightly("packages/virtual-ascend/virtual_ascend/switch.py")
TELL = "import os; print(os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD'))"
CHILD = f"""
import subprocess, sys
{TELL}
subprocess.run([sys.executable, "-c", "import torch; print(hasattr(torch, 'npu'))"])
"""


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("2.5.1", False),
        ("2.7.1", False),
        ("2.7.1.post10", False),
        ("2.7.1.post11", True),
        ("2.8.0.post5", False),
        ("2.9.0", False),
        ("2.9.0.post9", True),
        ("2.10.0.post7", True),
        ("2.12.0", False),
        ("2.13.0", True),
    ],
)
def test_a_version_sets_it_back_or_not(version: str, found: bool) -> None:
    assert restores(version) is found


@pytest.mark.parametrize(
    ("program", "version", "child"),
    [
        ("import torch_npu", "2.7.1", "False"),
        pytest.param("import torch_npu", "2.13.0", "True", marks=NIGHTLY),
        pytest.param("import torch, torch_npu", "2.7.1", "True", marks=NIGHTLY),
    ],
)
def test_a_child_has_npus_or_not(python: Run, program: str, version: str, child: str) -> None:
    first = "import virtual_ascend as v; v.expose(); "  # as an installed torch_npu does
    result = python(f"{first}{program}\n{CHILD}", VIRTUAL_ASCEND_TORCH_NPU_VERSION=version)
    assert result.stdout.splitlines()[-1] == child, result.stderr
