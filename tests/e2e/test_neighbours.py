"""What nobody here wrote, on two virtual NPUs: accelerate's own scripts, and TRL's trainers.

accelerate is in every pin's environment. TRL is not: `pip install --no-deps --target FOLDER trl`, and FOLDER on
PYTHONPATH. If one of them is not installed, its tests are skipped.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from virtual_ascend.testing import environment

pytestmark = [pytest.mark.e2e, pytest.mark.virtual]

ACCELERATE = ("test_script", "test_ops", "test_sync", "test_distributed_data_loop", "test_merge_weights")
TRAINERS = Path(__file__).with_name("trl_trainers.py")


def torchrun(tmp_path: Path, *program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in two processes, each with a virtual NPU."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    return subprocess.run(
        [*start, *program],
        cwd=tmp_path,
        env=environment(VIRTUAL_ASCEND="2", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.parametrize("script", ACCELERATE)
def test_accelerates_own_script_passes(script: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    spec = importlib.util.find_spec("accelerate.test_utils.scripts")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("this accelerate has no accelerate.test_utils.scripts")
    path = Path(next(iter(spec.submodule_search_locations))) / f"{script}.py"
    done = torchrun(tmp_path, str(path))
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


@pytest.mark.parametrize("trainer", ["sft", "lora", "grpo"])
def test_trls_trainer_trains(trainer: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("trl") is None:
        pytest.skip("install TRL: pip install --no-deps --target FOLDER trl, and put FOLDER on PYTHONPATH")
    done = torchrun(tmp_path, str(TRAINERS), trainer, str(tmp_path))
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert done.stdout.count("trained on npu") == 2
