"""Faults that showed on wheels of torch_npu, on each whose environment VERL_NPU_TORCH_NPU names a Python of."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ...features.fused_ops.test_grouped import PROGRAM as EXPERTS
from ..processes import environment

pytestmark = [pytest.mark.virtual, pytest.mark.e2e]

PROJECT = Path(__file__).parents[3]
PYTHONS = [path for path in os.environ.get("VERL_NPU_TORCH_NPU", "").split(os.pathsep) if path]
SET_ENV = "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
CHILDREN = """
import json, os, subprocess, sys
import verl_npu, verl
child = "import torch; print(torch.ones(2).npu().sum().item())"
done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
print(json.dumps([os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD"), done.stdout.strip()]))
"""


@pytest.fixture(params=PYTHONS or [None])
def python(request: pytest.FixtureRequest) -> str:
    if request.param is None:
        pytest.skip("set VERL_NPU_TORCH_NPU to the Python of an environment with a torch_npu and no CANN")
    return str(request.param)


def run(python: str, program: str, folder: Path, **changes: str | None) -> subprocess.CompletedProcess[str]:
    """Run a program with a verl that is empty."""
    (folder / "verl").mkdir()
    (folder / "verl" / "__init__.py").touch()
    paths = os.pathsep.join([str(PROJECT), str(folder)])
    variables = {"PYTHONPATH": paths, "VERL_NPU_VIRTUAL_TORCH_NPU": "real", **changes}
    return subprocess.run(
        [python, "-c", program],
        env=environment(**variables),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_experts_have_their_gradients(python: str, tmp_path: Path) -> None:
    done = run(python, EXPERTS, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    right, _ = json.loads(done.stdout.splitlines()[-1])
    assert right == [True] * 8


def test_our_import_before_torch_disarms_no_child(python: str, tmp_path: Path) -> None:
    done = run(python, CHILDREN, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [None, "2.0"]


@pytest.mark.parametrize(("strict", "code"), [(None, 0), ("1", 1)])
def test_without_cann_it_is_said_what_to_source(python: str, strict: str | None, code: int, tmp_path: Path) -> None:
    done = run(python, "import verl_npu, verl", tmp_path, VERL_NPU_VIRTUAL=None, VERL_NPU_STRICT=strict)
    assert done.returncode == code, done.stderr[-3000:]
    assert SET_ENV in done.stderr
