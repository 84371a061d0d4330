"""Ranks that torchrun started, compared through the store of their process group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
rank = int(os.environ["RANK"])
if rank == 1:
    os.environ.update(dict(pair.split("=") for pair in sys.argv[1:]))
import torch.distributed
from torch.distributed import init_process_group
# Upstream asks for the NPU's backend, and these ranks have none.
torch.distributed.init_process_group = lambda backend, **kwargs: init_process_group("gloo", **kwargs)
import verl.utils.distributed as distributed
from verl.utils.tracking import Tracking
import verl_npu.features.fleet.process_group as process_group

process_group._SECONDS = 5.0
distributed.initialize_global_process_group()
torch.distributed.barrier()
if rank == 0:
    Tracking("project", "experiment")
torch.distributed.barrier()
print("TRAINED", flush=True)
"""


def torchrun(folder: Path, *of_rank_1: str, **environment: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("verl")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("VERL_NPU")}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            str(program),
            *of_rank_1,
        ],
        env={**inherited, "VERL_NPU": "on", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.upstream
def test_ranks_that_are_alike_train(tmp_path: Path) -> None:
    done = torchrun(tmp_path, VERL_NPU_STRICT="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("TRAINED") == 2
    assert "2 processes agree on what is patched" in done.stderr


@pytest.mark.upstream
@pytest.mark.parametrize(
    ("change", "named"),
    [("VERL_NPU_DISABLE=device", "feature device: "), ("VERL_NPU=off", "probably not active: rank 1")],
)
def test_under_strict_ranks_that_differ_do_not_train(tmp_path: Path, change: str, named: str) -> None:
    done = torchrun(tmp_path, change, VERL_NPU_STRICT="1")
    assert done.returncode != 0
    assert named in done.stderr
    assert "TRAINED" not in done.stdout


@pytest.mark.upstream
def test_without_strict_ranks_that_differ_are_reported_and_train(tmp_path: Path) -> None:
    done = torchrun(tmp_path, "VERL_NPU=off")
    assert done.returncode == 0, done.stderr
    assert "probably not active: rank 1" in done.stderr
    assert done.stdout.count("TRAINED") == 2
