"""Jobs that fail on virtual NPUs, and the diagnosis of their logs (SIMULATED)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from verl_npu_workbench.diagnosis.judgement import Conclusion, Diagnosis, judge
from virtual_ascend.testing import start_ranks

pytestmark = pytest.mark.virtual

FAULTS = "VIRTUAL_ASCEND_FAULTS"
COLLECTIVES = """
import os, datetime, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.set_device(rank)
dist.init_process_group("hccl", init_method=os.environ["INIT"], rank=rank, world_size=size,
                        timeout=datetime.timedelta(seconds=20))
for step in range(3): dist.all_reduce(torch.ones(1, device="npu"))
"""


def failed(program: str, tmp_path: Path, **variables: str) -> Diagnosis:
    """Run a program on two virtual NPUs; return the diagnosis of its output."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("VERL_NPU_", "ASCEND_"))}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**inherited, "VIRTUAL_ASCEND": "2", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=300,
    )
    assert ended.returncode != 0, ended.stdout
    return judge(ended.stdout.splitlines())


@pytest.mark.parametrize(
    ("rule", "program", "variables"),
    [
        ("npu-memory", "import torch; torch.ones(2, device='npu')", {FAULTS: "oom:allocation=1"}),
        ("npu-memory-garbage", "import torch; torch.empty(2**61, dtype=torch.int8, device='npu')", {}),
        (
            "asked-for-fault",
            "import torch, torch_npu; torch_npu.npu_rms_norm(torch.ones(2, 4).npu(), torch.ones(4).npu())",
            {FAULTS: "fail:operator=npu_rms_norm"},
        ),
        ("operator-not-in-torch-npu", "import torch, torch_npu; torch_npu.npu_nothing_like_it", {}),
        ("asks-for-cuda", "import torch; torch.ones(2, device='cuda')", {}),
        ("own-off", "import torch; torch.ones(2, device='npu')", {FAULTS: "explode"}),
    ],
)
def test_a_failure_on_virtual_npus_is_named(
    rule: str, program: str, variables: dict[str, str], tmp_path: Path
) -> None:
    said = failed(program, tmp_path, **variables)
    assert said.root is not None
    # The script, verl or the engine may have asked for CUDA.
    conclusion = Conclusion.CODE if rule == "asks-for-cuda" else Conclusion.CAUSE
    assert (said.verdict, said.root.name) == (conclusion, rule)


def test_the_rank_that_died_is_the_root_and_the_other_lost_its_peer(tmp_path: Path) -> None:
    survivor, victim = start_ranks(COLLECTIVES, tmp_path, **{FAULTS: "die:collective=2:rank=1"})
    said = [process.communicate(timeout=120)[1] for process in (survivor, victim)]
    lines = [f"[rank{rank}]: {line}" for rank, text in enumerate(said) for line in text.splitlines()]
    diagnosis = judge(lines)
    assert diagnosis.root is not None
    assert (diagnosis.root.name, diagnosis.root.event.process.rank) == ("asked-for-fault", "1")
    assert "peer-gone" in {each.name for each in diagnosis.followed}
