"""Train a small model on virtual NPUs without verl, with a fault on one rank: training.py FAULT

Started by torchrun. Each step ends with a sum over all ranks, as data-parallel training does.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
FAULT = sys.argv[1]
AT = 3
"""The step of the fault."""


def exits() -> None:
    sys.exit(3)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crashes() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def stays_away() -> None:
    """Wait silently, as a rank does whose data ended earlier than the others'."""
    if RANK == 1:
        signal.pause()


def raises() -> None:
    rows = {"question": "1 + 1"}
    print(rows["solution"])


def mixes_devices() -> None:
    torch.ones(2, 2, device="npu") @ torch.ones(2, 2)


def asks_for_cuda() -> None:
    torch.ones(1).cuda()


def forks() -> None:
    torch.npu.current_device()
    child = multiprocessing.get_context("fork").Process(target=_use_npu)
    child.start()
    child.join()
    sys.exit(child.exitcode)


def _use_npu() -> None:
    torch.ones(1, device="npu").sum().item()


def fills_npu() -> None:
    kept = []
    while True:
        kept.append(torch.ones(1 << 22, device="npu"))


def fills_host() -> None:
    limit = 1 << 34
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.ones(1 << 33)


def fills_shared_memory() -> None:
    rows = torch.utils.data.TensorDataset(torch.ones(64, 1 << 20))
    for _ in torch.utils.data.DataLoader(rows, batch_size=16, num_workers=1):
        pass


def has_other_shapes() -> None:
    """Sum tensors of different shapes on the ranks."""
    shape = 8 if RANK == 1 else 16
    dist.all_reduce(torch.ones(shape, device="npu"))


def nothing() -> None:
    pass


FAULTS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        exits,
        is_killed,
        crashes,
        stays_away,
        raises,
        mixes_devices,
        asks_for_cuda,
        forks,
        fills_npu,
        fills_host,
        fills_shared_memory,
        has_other_shapes,
        nothing,
    )
}
ALL_RANKS = ("stays_away", "has_other_shapes")


def main() -> None:
    import torch_npu  # noqa: F401

    backend = os.environ.get("BACKEND", "hccl")
    dist.init_process_group(backend, timeout=timedelta(seconds=float(os.environ.get("SECONDS_TO_WAIT", "60"))))
    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    model = torch.nn.Linear(64, 64).to("npu")
    for step in range(1, 6):
        if step == AT and (RANK == 1 or FAULT in ALL_RANKS):
            FAULTS[FAULT]()
        loss = model(torch.ones(4, 64, device="npu")).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        print(f"step:{step} - train/loss:{loss.item():.4f}", flush=True)
    dist.destroy_process_group()


main()
