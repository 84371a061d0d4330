"""Gradients that FSDP keeps whole until the last micro batch are told as gradients."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ..virtual.processes import environment

pytest.importorskip("torch")
pytestmark = pytest.mark.virtual

PROGRAM = """
import contextlib, gc, json, os, tempfile
import torch, torch_npu, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.device_mesh import init_device_mesh
from verl_npu.plan.phase import Phase
from verl_npu.plan.rank.recording import Recording
from verl_npu.virtual.device.extension import extension
from verl_npu.virtual.hccl.backend import be_alone

SIZE, RANKS = 512, 4

extension().start_ledger(1.0, 1.0)
be_alone()
store = dist.FileStore(tempfile.mkdtemp() + "/store", RANKS)
dist.init_process_group("cpu:gloo,npu:hccl", store=store, rank=0, world_size=RANKS)


def model():
    return nn.Sequential(*(nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))).npu()


def fsdp1(**how):
    types = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    whole = FullyShardedDataParallel(model(), device_id=torch.npu.current_device(), mixed_precision=types, **how)
    return whole, whole.no_sync


def fsdp2(reduced_in):
    whole, mesh = model(), init_device_mesh("npu", (RANKS,))
    for layer in whole:
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, reduced_in))
    fully_shard(whole, mesh=mesh)

    @contextlib.contextmanager
    def unreduced():
        whole.set_requires_gradient_sync(False)
        yield
        whole.set_requires_gradient_sync(True)

    return whole, unreduced


def case(make):
    gc.collect()  # the model of the case before
    whole, unreduced = make()
    recording = Recording(extension())
    recording.watch()
    with recording.phase(Phase.UPDATE_ACTOR):
        for last in (False, True):
            with contextlib.nullcontext() if last else unreduced():
                whole(torch.ones(1, SIZE, device="npu")).sum().backward()
    return max(point.holders.get("gradients", 0) for point in recording.timeline())


CASES = {
    "FSDP1": fsdp1,
    "FSDP1, original parameters": lambda: fsdp1(use_orig_params=True),
    "FSDP2, reduced as computed": lambda: fsdp2(torch.bfloat16),
    "FSDP2, reduced in float32": lambda: fsdp2(torch.float32),
}
print(json.dumps({name: case(make) for name, make in CASES.items()}))
os._exit(0)
"""
WEIGHTS = 4 * 512 * 512
"""Of all ranks."""


@pytest.fixture(scope="module")
def kept() -> dict[str, int]:
    """What each case has of gradients at most, in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment(VERL_NPU="off", VERL_NPU_VIRTUAL_PHANTOM="0.0625"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("case", "size"),
    [
        ("FSDP1", 2),
        ("FSDP1, original parameters", 2),
        ("FSDP2, reduced as computed", 2),
        ("FSDP2, reduced in float32", 4),
    ],
)
def test_whole_gradients_are_gradients(kept: dict[str, int], case: str, size: int) -> None:
    # Sharded, they would be a fourth of it.
    assert kept[case] == WEIGHTS * size
