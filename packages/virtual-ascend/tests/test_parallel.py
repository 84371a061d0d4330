"""Sharded, tensor- and pipeline-parallel training at 2 to 4 ranks: the same bits on NPUs over hccl as over gloo."""

from __future__ import annotations

from typing import Any

import pytest
from virtual_ascend.testing import results, start_ranks

MORE = pytest.mark.nightly("packages/virtual-ascend/virtual_ascend/hccl")
SIZES = (2, pytest.param(3, marks=MORE), pytest.param(4, marks=MORE))
KINDS = ("fsdp1", "fsdp2", "tensor", "pipeline")

# Every rank trains each kind on both devices, and prints the losses, gradient norms and weights in hexadecimal.
PROGRAM = """
import datetime, inspect, json, os
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
try: from torch.distributed.fsdp import fully_shard
except ImportError: fully_shard = None  # torch 2.5's, elsewhere, needs CUDA
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, schedules
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.set_device(rank)
dist.init_process_group("cpu:gloo,npu:hccl", init_method=os.environ["INIT"], rank=rank, world_size=size,
                        timeout=datetime.timedelta(seconds=120))
WIDTH = 12  # a multiple of every size

def blocks(count):
    torch.manual_seed(0)
    nn, wide = torch.nn, 2 * WIDTH
    layers = lambda: (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, wide), nn.GELU(), nn.Linear(wide, WIDTH))
    return [nn.Sequential(*layers()) for _ in range(count)]

def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()

def digits(tensor):
    return [value.hex() for value in whole(tensor).double().flatten().tolist()]

def inputs(device, step):
    torch.manual_seed(100 * step + 1)
    return torch.randn(12, 12, WIDTH).to(device)

def train(model, device, share):  # share: a rank's part of a batch
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    seen = []
    for step in range(3):
        batch = inputs(device, step)
        loss = model(share(batch)).pow(2).mean()
        loss.backward()
        clip = getattr(model, "clip_grad_norm_", None)
        norm = clip(1.0) if clip else torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(); optimizer.zero_grad()
        seen += digits(loss) + digits(norm)
    return seen + [digit for parameter in model.parameters() for digit in digits(parameter)]

def rows(batch):
    return batch[rank::size]

def fsdp1(device, mesh):
    model = torch.nn.Sequential(*blocks(2)).to(device)
    where = torch.device("cpu") if device == "cpu" else rank
    model = FullyShardedDataParallel(model, device_mesh=mesh, use_orig_params=True, device_id=where)
    return train(model, device, rows)

def fsdp2(device, mesh):
    model = torch.nn.Sequential(*blocks(2)).to(device)
    for block in model: fully_shard(block, mesh=mesh)
    return train(fully_shard(model, mesh=mesh), device, rows)

def tensor(device, mesh):
    model = torch.nn.Sequential(*blocks(2)).to(device)
    for block in model:
        plan = {"0": SequenceParallel(use_local_output=True), "1": ColwiseParallel(input_layouts=Shard(1)),
                "3": RowwiseParallel(output_layouts=Shard(1))}
        parallelize_module(block, mesh, plan)
    return train(model, device, lambda batch: batch.chunk(size, 1)[rank])

class Batch:
    def __init__(self, works): self.works = works
    def wait(self): [work.wait() for work in self.works]

# Before 2.8 torch waits for the last message of a batch only. HCCL runs a batch as one; gloo loses the others.
last_only = not hasattr(schedules, "_wait_batch_p2p")
send_batch = schedules._batch_p2p
def wait_for_all(messages, desc=None): return Batch(dist.batch_isend_irecv(messages)) if messages else None

def pipeline(device, mesh):
    if last_only: schedules._batch_p2p = wait_for_all if device == "cpu" else send_batch
    module = torch.nn.Sequential(*blocks(size)[rank:rank + 1]).to(device)
    where = torch.device(device) if device == "cpu" else torch.device("npu", rank)
    asks = inspect.signature(PipelineStage).parameters["input_args"].default is inspect.Parameter.empty  # torch 2.5
    shape = (torch.empty(3, 12, WIDTH, device=where),) if asks else ()
    stage = PipelineStage(module, rank, size, where, *shape)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, target: (out - target).pow(2).mean())
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    seen = []
    for step in range(3):
        batch, losses = inputs(device, step), []
        if rank == 0: schedule.step(batch)
        elif rank == size - 1: schedule.step(target=batch.flip(0), losses=losses)
        else: schedule.step()
        optimizer.step(); optimizer.zero_grad()
        seen += [digit for loss in losses for digit in digits(loss)]
    return seen + [digit for parameter in module.parameters() for digit in digits(parameter)]

average = torch.zeros(1)
dist.reduce_scatter_tensor(average, torch.ones(size), op=dist.ReduceOp.AVG)  # gloo of torch 2.8 sums
out = {"gloo_averages": average.item() == 1}
for kind in os.environ["KINDS"].split(","):
    if kind == "fsdp2" and fully_shard is None: continue
    out[kind] = {}
    for device in ("cpu", "npu"):
        mesh = init_device_mesh(device, (size,))
        out[kind][device] = globals()[kind](device, mesh)
        dist.barrier()
print(json.dumps(out), flush=True)
dist.destroy_process_group()
os._exit(0)  # torch's own gloo, on the CPU, may abort while the interpreter ends
"""


@pytest.fixture(scope="module", params=SIZES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    size: int = request.param
    folder = tmp_path_factory.mktemp(f"parallel{size}")
    return results(start_ranks(PROGRAM, folder, size, VIRTUAL_ASCEND="4", KINDS=",".join(KINDS)), timeout=300)


@pytest.mark.parametrize("kind", KINDS)
def test_training_equals_the_cpu_and_gloo(trained: list[dict[str, Any]], kind: str) -> None:
    if kind == "fsdp2" and "fsdp2" not in trained[0]:
        pytest.skip("this torch's FSDP2 needs CUDA, and torch_npu of that version does not change it")
    if kind == "fsdp2" and not all(rank["gloo_averages"] for rank in trained):
        pytest.skip("this torch's gloo sums where FSDP2 asks for the average: there is nothing to compare with")
    for rank in trained:
        assert len(rank[kind]["cpu"]) > 100
        assert rank[kind]["npu"] == rank[kind]["cpu"]
