"""Run a training of two ranks on virtual NPUs that stands still, or is only slow: ranks.py HOW, under torchrun."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401
from torch.utils.data import DataLoader, Dataset

RANK = int(os.environ["RANK"])
HOW = sys.argv[1]
STEPS = 10_000


class Rows(Dataset[torch.Tensor]):
    """Rows of which one takes for ever to read, on rank 1."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        if HOW == "data" and RANK == 1 and index > 20:
            time.sleep(1000)
        return torch.ones(64)


def total(gradient: torch.Tensor) -> None:
    dist.all_reduce(gradient)


def validate(group: dist.ProcessGroup) -> None:
    """Meet all ranks at a barrier, although only rank 0 calls this."""
    dist.barrier(group)


def slow_work() -> None:
    until = time.monotonic() + 4
    number = 0
    while time.monotonic() < until:
        number += sum(range(1000))


def main() -> None:
    dist.init_process_group("hccl", timeout=timedelta(minutes=20))
    others = dist.new_group([0, 1])
    model = torch.nn.Linear(64, 64).to("npu")
    rows = DataLoader(Rows(), batch_size=8, num_workers=1)
    for step, batch in zip(range(STEPS), rows, strict=False):
        loss = model(batch.to("npu")).square().mean()
        loss.backward()
        if HOW == "branch" and RANK == 0 and step == 2:
            validate(others)
        if HOW == "slow" and RANK == 1:
            slow_work()
        if HOW == "naps" and RANK == 1:
            time.sleep(20)
        for parameter in model.parameters():
            total(parameter.grad)
        print(f"rank {RANK} made step {step}", flush=True)
        if HOW == "stopped" and step == 2:
            time.sleep(2)


main()
