"""Checks HCCL's collectives with two NPUs up to all NPUs: exact results, speed, and the effects of late or killed
ranks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ..corpus import Key, Kind, Observation
from ..record import NotPossible, Wrong
from . import ranks
from .ranks import Rank
from .setup import Setup

_DTYPES = ("float32", "bfloat16", "int64")
_SECONDS = 120.0
_LATE = 2.0
_PATIENCE = 8.0
"""The seconds that a process group waits for a killed rank."""
_MOST_PATIENCE = 60.0
"""The number of seconds that the other ranks have to exit."""
_SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28)
_LONG = 0.3
"""A time in seconds. Once a message takes longer than a quarter of it, no larger message is sent."""


def run(setup: Setup) -> None:
    """Run the checks for groups of 2, 4, 8, and 16 NPUs, and for all NPUs."""
    count = setup.npus()
    if count < 2:
        raise NotPossible("collectives need at least two NPUs, and this machine has only one")
    sizes = sorted({*(size for size in (2, 4, 8, 16) if size < count), count})
    for size in sizes:
        meaning = f"gradients of {size} NPUs would be summed wrongly, or not at all"
        setup.record.check(f"collectives of {size} NPUs", partial(_right, setup, size), meaning)
    setup.record.check(
        f"a rank that is {_LATE:g} s late", partial(_late, setup), "a slower rank would lead to a wrong sum"
    )
    setup.record.check(
        "a rank that is killed",
        partial(_killed, setup),
        "a job with a dead rank would hang until somebody notices",
    )


def _right(setup: Setup, size: int) -> str | tuple[str, dict[str, float]]:
    facts = ranks.all_well(ranks.started(setup, f"all-{size}", size, ("collectives", "compare"), _SECONDS))
    wrong = str(facts.get("wrong", "no answer"))
    if wrong:
        raise Wrong(wrong, "exact results on every rank")
    messages = facts.get("messages")
    fastest = 0.0
    for name, length, seconds in messages if isinstance(messages, list) else ():
        figures = {"seconds": float(seconds), "bytes": float(length), "ranks": float(size)}
        seen = Observation(key=Key(Kind.MESSAGE, str(name), f"{length} B, {size} NPUs"), figures=figures)
        setup.record.observe(seen)
        fastest = max(fastest, float(length) / float(seconds) / 1e9)
    return f"{facts['compared']} results of {facts['collectives']} collectives", {"GB/s at most": fastest}


def compare(rank: Rank) -> None:
    """Run one rank that compares the result of each collective with the exact result, in each dtype, and then measures
    the time of some collectives."""
    import torch

    distributed = rank.join(_SECONDS)
    wrong: list[str] = []
    compared = 0
    for dtype in (getattr(torch, name) for name in _DTYPES):
        for name, found, expected in _collectives(distributed, rank, dtype):
            compared += 1
            if not torch.equal(found.cpu(), expected.to(dtype)):
                first = int((found.cpu() != expected.to(dtype)).flatten().nonzero()[0])
                its, other = found.flatten()[first].item(), expected.flatten()[first].item()
                wrong.append(f"{name} of {dtype} on rank {rank.number}: {its:g} at {first}, expected {other:g}")
    texts: list[Any] = [None] * rank.size
    distributed.all_gather_object(texts, "; ".join(wrong[:3]))
    messages = [] if any(texts) else _timed(distributed, rank)
    rank.answer(
        wrong="; ".join(filter(None, texts))[:1500],
        compared=compared * rank.size,
        collectives=compared // len(_DTYPES),
        messages=messages,
    )
    distributed.destroy_process_group()


def _sent(rank: int, length: int = 1027) -> Any:
    """Return the numbers that a rank sends. They are integers that every type can represent exactly, even when summed
    over all ranks."""
    import torch

    return (torch.arange(length) * (rank + 3) % 5).double()


def _collectives(distributed: Any, rank: Rank, dtype: Any) -> list[tuple[str, Any, Any]]:
    import torch

    size, here = rank.size, rank.number
    everybody = [_sent(number) for number in range(size)]
    mine = everybody[here].to(dtype).npu()
    found: list[tuple[str, Any, Any]] = []
    total = torch.stack(everybody).sum(0)

    def reduced(name: str, operation: Any, expected: Any) -> None:
        made = mine.clone()
        distributed.all_reduce(made, operation)
        found.append((f"all_reduce {name}", made, expected))

    reduced("SUM", distributed.ReduceOp.SUM, total)
    reduced("MAX", distributed.ReduceOp.MAX, torch.stack(everybody).amax(0))
    if dtype.is_floating_point:
        # Exact in every type, because all numbers are multiples of the number of ranks.
        made = (everybody[here] * size).to(dtype).npu()
        distributed.all_reduce(made, distributed.ReduceOp.AVG)
        found.append(("all_reduce AVG", made, total))
    for source in (0, size - 1):
        made = mine.clone()
        distributed.broadcast(made, source)
        found.append((f"broadcast from {source}", made, everybody[source]))
    gathered = torch.empty(size * mine.numel(), dtype=dtype, device="npu")
    distributed.all_gather_into_tensor(gathered, mine)
    found.append(("all_gather", gathered, torch.cat(everybody)))
    scattered = torch.empty(256, dtype=dtype, device="npu")
    distributed.reduce_scatter_tensor(scattered, mine[: 256 * size].contiguous() if size <= 4 else _long(rank, dtype))
    part = total if size <= 4 else torch.stack([_sent(number, 256 * size) for number in range(size)]).sum(0)
    found.append(("reduce_scatter", scattered, part[256 * here : 256 * (here + 1)]))
    exchanged = torch.empty(size * 8, dtype=dtype, device="npu")
    distributed.all_to_all_single(exchanged, mine[: size * 8].contiguous())
    parts = [each[8 * here : 8 * (here + 1)] for each in everybody]
    found.append(("all_to_all", exchanged, torch.cat(parts)))
    passed = torch.empty_like(mine)
    works = distributed.batch_isend_irecv(
        [
            distributed.P2POp(distributed.isend, mine, (here + 1) % size),
            distributed.P2POp(distributed.irecv, passed, (here - 1) % size),
        ]
    )
    for work in works:
        work.wait()
    found.append(("send and receive", passed, everybody[(here - 1) % size]))
    return found


def _long(rank: Rank, dtype: Any) -> Any:
    return _sent(rank.number, 256 * rank.size).to(dtype).npu()


def _timed(distributed: Any, rank: Rank) -> list[tuple[str, int, float]]:
    """Send larger and larger messages until one takes too long. Return the name, bytes, and seconds of each. All ranks
    send the same messages."""
    import torch

    measured = []
    for name, call in (("all_reduce", distributed.all_reduce), ("broadcast", partial(distributed.broadcast, src=0))):
        for size in _SIZES:
            sent = torch.zeros(size // 4, dtype=torch.float32, device="npu")
            spent = torch.tensor([_shortest(call, sent)], device="npu")
            distributed.all_reduce(spent, distributed.ReduceOp.MAX)
            seconds = float(spent.item())
            measured.append((name, size, seconds))
            if seconds > _LONG / 4:
                break
    return measured


def _shortest(call: Callable[[Any], object], sent: Any) -> float:
    import torch

    best = float("inf")
    for turn in range(3):
        torch.npu.synchronize()
        began = time.perf_counter()
        call(sent)
        torch.npu.synchronize()
        if turn:
            best = min(best, time.perf_counter() - began)
    return best


def _late(setup: Setup) -> str:
    ended = ranks.started(setup, "late", 2, ("collectives", "come_late"), _SECONDS)
    facts = ranks.all_well(ended)
    if facts.get("found") != 3.0:
        raise Wrong(f"a sum of {facts.get('found')}", "3")
    return f"the sum is correct, and rank 0 waited {float(str(facts['seconds'])):.1f} s for it"


def come_late(rank: Rank) -> None:
    """Run one rank of a test in which the last rank joins a collective late."""
    import torch

    distributed = rank.join(_SECONDS)
    distributed.barrier()
    if rank.number == rank.size - 1:
        time.sleep(_LATE)
    began = time.monotonic()
    made = torch.full((64,), float(rank.number + 1), device="npu")
    distributed.all_reduce(made)
    found = float(made.cpu().max())
    rank.answer(found=found, seconds=time.monotonic() - began)
    distributed.destroy_process_group()


def _killed(setup: Setup) -> str:
    began = time.monotonic()
    ended = ranks.started(setup, "killed", 2, ("collectives", "be_killed"), _MOST_PATIENCE)
    seconds = time.monotonic() - began
    survivor, victim = ended
    if victim.status != -signal.SIGKILL:
        raise RuntimeError(f"the test killed the last rank with SIGKILL, but the rank {victim.how}")
    if survivor.status is None:
        raise Wrong(
            f"the other rank is still waiting after {seconds:.0f} s",
            f"the other rank to exit about {_PATIENCE:g} s after a rank is killed",
        )
    if survivor.facts.get("went on"):
        raise Wrong("the other rank continued as if the killed rank were alive", "the other rank to fail or exit")
    said = str(survivor.facts.get("said", "")) or survivor.how
    return f"its peer got an error or ended {seconds:.0f} s after the start: {said}"


def be_killed(rank: Rank) -> None:
    """Run one rank of a test in which the last rank is killed before a sum. The other ranks report the error that they
    get."""
    import torch

    distributed = rank.join(_PATIENCE)
    made = torch.ones(64, device="npu")
    distributed.all_reduce(made)
    torch.npu.synchronize()
    if rank.number == rank.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        distributed.all_reduce(made)
        torch.npu.synchronize()
        found = float(made.cpu().max())
    except RuntimeError as error:
        rank.answer(said=str(error).strip().splitlines()[0][:300])
        os._exit(3)
    rank.answer(**{"went on": True, "found": found})
