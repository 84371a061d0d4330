"""Scripts by others on two virtual NPUs: accelerate's own, which are in every pin's environment."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from virtual_ascend.testing import environment

SCRIPTS = ("test_script", "test_sync", "test_distributed_data_loop", "test_merge_weights")


@pytest.mark.e2e
@pytest.mark.virtual
@pytest.mark.parametrize(
    "script",
    ["test_ops", *(pytest.param(each, marks=pytest.mark.nightly("packages/virtual-ascend")) for each in SCRIPTS)],
)
def test_accelerates_own_script_passes(script: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    spec = importlib.util.find_spec("accelerate.test_utils.scripts")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("this accelerate has no accelerate.test_utils.scripts")
    path = Path(next(iter(spec.submodule_search_locations))) / f"{script}.py"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(path)],
        cwd=tmp_path,
        env=environment(VIRTUAL_ASCEND="2", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
