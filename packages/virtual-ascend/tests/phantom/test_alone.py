"""A rank that is the only one of its groups allocates as much as among others."""

# ruff: noqa: E501 - the lines of programs in strings

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.testing import environment
from virtual_ascend.testing.fixtures import Run

PHANTOM = "0.03125"
CASES = ("FSDP1", "FSDP2", "FSDP2, recomputation", "FSDP2, LoRA", "tensor and sequence parallel", "Ulysses")


def _start(folder: Path, rank: int, **settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.phantom.sharded", *CASES],
        env=environment(
            VIRTUAL_ASCEND_PHANTOM=PHANTOM,
            RANK=str(rank),
            WORLD_SIZE="2",
            INIT=f"file://{folder}/meet",
            **settings,
        ),
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _answers(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, error = process.communicate(timeout=280)
    assert process.returncode == 0, error[-3000:]
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    together = tmp_path_factory.mktemp("together")
    ranks = [_start(together, rank) for rank in range(2)]
    first, _ = [_answers(rank) for rank in ranks]
    return {"among others": first, "alone": _answers(_start(tmp_path_factory.mktemp("alone"), 0, ALONE="1"))}


@pytest.mark.nightly(
    "packages/virtual-ascend/virtual_ascend/hccl", "packages/virtual-ascend/virtual_ascend/device/csrc"
)
@pytest.mark.parametrize("case", CASES)
def test_a_lone_rank_allocates_the_same(costs: dict[str, dict[str, Any]], case: str) -> None:
    assert not isinstance(costs["among others"][case], str)
    assert costs["alone"][case] == costs["among others"][case]


PROGRAM = """
import json, os, tempfile, torch, torch_npu, torch.distributed as dist
from virtual_ascend.hccl.backend import be_alone
be_alone()
folder = tempfile.mkdtemp()
dist.init_process_group("cpu:gloo,npu:hccl", store=dist.FileStore(folder + "/store", 4), rank=1, world_size=4)
out = {}
x = torch.arange(3.0, device="npu"); dist.all_reduce(x); out["sum"] = x.tolist()
x = torch.arange(3.0, device="npu"); dist.all_reduce(x, dist.ReduceOp.MAX); out["largest"] = x.tolist()
x = torch.arange(3.0, device="npu"); dist.all_reduce(x, dist.ReduceOp.AVG); out["mean"] = x.tolist()
y = torch.empty(8, device="npu"); dist.all_gather_into_tensor(y, torch.tensor([1.0, 2.0], device="npu")); out["gathered"] = y.tolist()
z = torch.empty(2, device="npu"); dist.reduce_scatter_tensor(z, torch.arange(8.0, device="npu")); out["scattered"] = z.tolist()
r = torch.ones(2, device="npu"); dist.recv(r, 0); out["received"] = r.tolist()
objects = [None] * 4; dist.all_gather_object(objects, {"rank": 1}); out["objects"] = objects
group = dist.new_group([0, 1]); dist.barrier(group); out["group"] = dist.get_world_size(group)
host = torch.ones(1); dist.all_reduce(host); out["host"] = host.tolist()
print(json.dumps(out)); os._exit(0)
"""


def test_a_lone_rank_computes_as_if_the_others_had_its_tensors(python: Run) -> None:
    done = python(PROGRAM)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "sum": [0, 4, 8],
        "largest": [0, 1, 2],
        "mean": [0, 1, 2],
        "gathered": [1, 2] * 4,
        "scattered": [8, 12],
        "received": [0, 0],
        "objects": [{"rank": 1}] * 4,
        "group": 2,
        "host": [4],
    }
