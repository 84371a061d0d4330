"""The NPU memory of a case: its peak, and the allocated bytes and blocks, at its end and in all.

With LEAST, in bytes, the host memory of tensors of at least that size is measured instead.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
from virtual_ascend import ledger

_HOST = 3  # csrc/ledger.h

Case = Callable[[], object]


def cost(case: Case) -> list[int] | str:
    """Run a case, and return its cost or its error."""
    gc.collect()
    torch.npu.reset_peak_memory_stats()
    torch.npu.reset_accumulated_memory_stats()
    before = torch.npu.memory_allocated()
    torch.manual_seed(0)
    try:
        if least := int(os.environ.get("LEAST", "0")):
            return [_host_peak(case, least)]
        case()
    except Exception as error:  # the error of one case; the others are still to be measured
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    _let_go(before)
    stats = torch.npu.memory_stats()
    names = ("allocated_bytes.all.peak", "allocated_bytes.all.allocated", "allocation.all.allocated")
    return [torch.npu.memory_allocated() - before, *(stats[name] for name in names)]


def _host_peak(case: Case, least: int) -> int:
    """Return the most that the host has of large tensors after a step of an optimizer."""
    held: list[int] = []
    count = _counted if ledger.phantom_bytes() else _found
    handle = register_optimizer_step_post_hook(lambda *_: held.append(count(least)))
    case()
    handle.remove()
    return max(held)


def _counted(least: int) -> int:
    return sum(block.size for block in ledger.blocks() if block.holder == _HOST and not block.freed)


def _found(least: int) -> int:
    gc.collect()
    seen = [getattr(each, "_local_tensor", each) for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    # A view that FSDP has overwritten can no longer say whether it is a leaf.
    seen += [each.grad for each in seen if isinstance(each, torch.nn.Parameter) and each.grad is not None]
    storages = [each.untyped_storage() for each in seen if each.device.type == "cpu" and each.layout == torch.strided]
    return sum({each.data_ptr(): each.nbytes() for each in storages if each.nbytes() >= least}.values())


def _let_go(before: int) -> None:
    """Wait a moment for memory that other threads hold: gloo's free a message some time after it has arrived."""
    ends = time.monotonic() + 3.0
    gc.collect()
    while torch.npu.memory_allocated() > before and time.monotonic() < ends:
        time.sleep(0.02)
        gc.collect()


def trained(
    step: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer, steps: int = 2, clip: bool = True
) -> None:
    """Train; from the second step on the optimizer's state is there."""
    for _ in range(steps):
        loss = step()
        loss.backward()
        loss.item()
        del loss
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()


def answer(cases: Mapping[str, Case]) -> None:
    """Print the cost of each case as JSON, for the cases on the command line, or all."""
    chosen = sys.argv[1:] or list(cases)
    if ledger.phantom_bytes():
        ledger.start(1.0, 1.0)
    print(json.dumps({name: cost(cases[name]) for name in chosen}), flush=True)


def run_ranks(cases: Mapping[str, Case]) -> None:
    """Meet the other ranks, as RANK, WORLD_SIZE and INIT say, and print the cost of each case on this one.

    With ALONE there are no others.
    """
    rank = int(os.environ["RANK"])
    torch.npu.set_device(rank)
    if "ALONE" in os.environ:
        from virtual_ascend.hccl.backend import be_alone

        be_alone()
    dist.init_process_group(
        "cpu:gloo,npu:hccl",
        init_method=os.environ["INIT"],
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=datetime.timedelta(seconds=60),
    )
    answer(cases)
    os._exit(0)
