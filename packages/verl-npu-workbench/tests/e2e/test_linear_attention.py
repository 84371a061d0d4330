"""Ten steps of GRPO of a small Qwen3.5 on two virtual NPUs, with and without flash-linear-attention: SIMULATED.

It needs verl 0.9.1. The kernels also need `pip install --no-deps fla-core==0.6.0 triton-ascend==3.2.0`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from pathlib import Path

import pytest

from .conftest import Smoke

pytestmark = [pytest.mark.e2e, pytest.mark.nightly("verl_npu/features/linear_attention.py")]
STEPS = 10


@pytest.fixture(scope="session")
def pin() -> str:
    version = importlib.metadata.version("verl") if importlib.util.find_spec("verl") else "none"
    if version != "0.9.1":
        pytest.skip(f"needs verl 0.9.1; found {version}")
    return f"v{version}"


@pytest.mark.parametrize(("job", "installed"), [("linear_attention", True), ("linear_attention_torch", False)])
def test_a_qwen3_5_trains_and_the_log_names_the_code(smoke: Smoke, tmp_path: Path, job: str, installed: bool) -> None:
    if (importlib.util.find_spec("fla") is not None) != installed:
        pytest.skip(f"runs {'with' if installed else 'without'} flash-linear-attention")
    # The job fails unless its log says which code runs, and why.
    done = smoke(steps=STEPS, job=job)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "smoke.json").read_text())
    assert result["steps"] == STEPS
    states = {name.partition(":")[0]: states["linear_attention"] for name, states in result["features"].items()}
    assert states["WorkerDict"] == "applied"
