"""The runner of PyTorch's tests, on a test of this file's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FILE = "cpp_extensions/test_made_up.py"
TESTS = """
import torch_openreg
import torch

def test_the_device_has_its_name_here():
    assert torch.ones(2, device="openreg").is_openreg and torch.openreg.device_count() == 2

def test_of_another_device():
    torch.ones(2, device="cuda")
"""


def test_a_test_of_the_example_device_runs_here_and_a_failure_without_a_reason_is_said(tmp_path: Path) -> None:
    file = tmp_path / "test" / FILE
    file.parent.mkdir(parents=True)
    file.write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "tests.pytorch", str(tmp_path), FILE],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 1
    *_, counts, heading, finding = done.stdout.splitlines()
    assert counts == "SIMULATED, 2 virtual NPUs: {'failure': 1, 'passed': 1}"
    assert heading == "not as reasons.py has it:"
    assert "test_of_another_device: " in finding
