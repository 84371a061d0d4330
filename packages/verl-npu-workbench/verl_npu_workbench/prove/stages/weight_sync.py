"""Checks the weight sync: exact bits, its speed relative to a raw broadcast, and the behaviour when a receiver is
killed."""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import Any

from verl_npu.features.weight_sync.settings import Check, Settings

from ..folder import put
from ..record import NotPossible, Wrong
from . import ranks
from .ranks import Rank
from .setup import Setup

_SECONDS = 120.0
_PATIENCE = 10.0
_BYTES = 32 << 20
_STALE = "the rollout would use different weights than the trained ones"
_SLOW = "each step would wait longer for the weights than necessary"
_LEAST_SHARE = 0.2
"""The least allowed fraction of a raw broadcast's speed. Below it, a weight sync would take up a large part of a
step."""


def run(setup: Setup) -> None:
    """Run the checks of the weight sync between two NPUs."""
    if setup.npus() < 2:
        raise NotPossible("a weight sync needs two NPUs, and this machine has only one")
    setup.record.check(
        "bit for bit",
        partial(_exact, setup),
        _STALE,
    )
    setup.record.check(
        "its share of a raw broadcast",
        partial(_share, setup),
        _SLOW,
    )
    setup.record.check(
        "a receiver that is killed",
        partial(_killed, setup),
        "the trainer would hang, or continue with an engine that has no weights",
    )


class _Kept:
    """An engine that keeps the weights that it receives."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def load(self, weights: Iterable[tuple[str, Any]]) -> None:
        self.held.update((name, tensor.clone()) for name, tensor in weights)

    def open(self) -> None:
        return

    def expect(self, weights: Iterable[tuple[str, Any]]) -> None:
        return

    def prove(self) -> str:
        return ""


class _Dropped(_Kept):
    """An engine that drops the weights that it receives, so that only the sync itself is timed."""

    def load(self, weights: Iterable[tuple[str, Any]]) -> None:
        return


def _meet(rank: Rank, seconds: float) -> Any:
    """Join a weight-sync group as the trainer and the rollout do. Rank 0 listens for the other rank."""
    import torch

    from verl_npu.ascend import software
    from verl_npu.features.weight_sync.transport import group
    from verl_npu.features.weight_sync.transport.messages import Meeting, Secret, open_meeting

    software.import_torch_npu()
    torch.npu.set_device(rank.number)
    path = rank.folder / "meeting"
    if rank.number == 0:
        meeting = open_meeting("127.0.0.1", 0, seconds)
        put(path, json.dumps([meeting.host, meeting.port, meeting.secret.value.hex()]).encode())
    else:
        ends = time.monotonic() + seconds
        while not path.exists() and time.monotonic() < ends:
            time.sleep(0.02)
        host, port, secret = json.loads(path.read_bytes())
        meeting = Meeting(host, port, Secret(bytes.fromhex(secret)))
    device = torch.device("npu", rank.number)
    return group.join("proof", meeting, rank.number, rank.size, timeout=seconds, device=device)


def _tensors() -> dict[str, Any]:
    """Return weights of several types and shapes with random bits, NaN included, the same in every process."""
    import torch

    generator = torch.Generator().manual_seed(5)
    made = {}
    for place, (dtype, shape) in enumerate(
        ((torch.bfloat16, (384, 128)), (torch.float32, (257,)), (torch.bfloat16, (1,)), (torch.float16, (64, 3, 5)))
    ):
        size = torch.empty((), dtype=dtype).element_size()
        count = size * torch.Size(shape).numel()
        drawn = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
        made[f"layers.{place}.weight"] = drawn.view(dtype).reshape(shape)
    return made


def _bits(tensor: Any) -> Any:
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _changed(tensor: Any, turn: int) -> Any:
    """Return the weights for another weight sync: the same tensor with different bits."""
    return _bits(tensor).bitwise_xor(turn).view(tensor.dtype).reshape(tensor.shape)


def _exact(setup: Setup) -> str:
    facts = ranks.all_well(ranks.started(setup, "exact", 2, ("weight_sync", "move"), _SECONDS)[::-1])
    wrong = facts.get("wrong")
    if wrong != []:
        raise Wrong(f"different bits in {wrong}", "the bits that were sent")
    return f"{facts['tensors']} tensors, {facts['bytes']} B, three times, with checksums"


def move(rank: Rank) -> None:
    """Run one rank of a test in which rank 0 sends three times, with different weights each time. Rank 1 compares the
    received weights with the expected weights."""
    import torch

    from verl_npu.features.weight_sync.transport.sync import receive, send
    from verl_npu.features.weight_sync.transport.tensors import Metadata

    joined = _meet(rank, _SECONDS)
    tensors = _tensors()
    wrong: list[str] = []
    for turn in range(3):
        if turn:
            # With the same weights, a sync that sends nothing would look correct.
            tensors = {name: _changed(each, turn) for name, each in tensors.items()}
        metadata = Metadata.of((name, each.shape, each.dtype) for name, each in tensors.items())
        if rank.number == 0:
            there = {name: each.npu() for name, each in tensors.items()}
            send(joined, metadata, there.items(), Settings(check=Check.CHECKSUMS))
        else:
            engine = _Kept()
            receive(joined, metadata, engine)
            wrong += [
                f"{name} of sync {turn}"
                for name, each in tensors.items()
                if not torch.equal(_bits(engine.held[name]), _bits(each))
            ]
    total = sum(_bits(each).numel() for each in tensors.values())
    rank.answer(wrong=wrong, tensors=len(tensors), bytes=total)
    joined.close()


def _share(setup: Setup) -> tuple[str, dict[str, float]]:
    facts = ranks.all_well(ranks.started(setup, "share", 2, ("weight_sync", "measure"), _SECONDS))
    raw, sync = float(str(facts["raw"])), float(str(facts["sync"]))
    share = raw / sync
    figures = {"raw broadcast, GB/s": _BYTES / raw / 1e9, "sync, GB/s": _BYTES / sync / 1e9, "share": share}
    found = f"{share:.0%} of a raw broadcast's speed"
    if share < _LEAST_SHARE and setup.has_the_wheel:
        raise NotPossible(
            f"{found}, but virtual NPUs with the official torch_npu wheel need a long time to launch an operator, "
            "so this speed is not meaningful"
        )
    if share < _LEAST_SHARE:
        raise Wrong(found, f"at least {_LEAST_SHARE:.0%}", figures)
    return found, figures


def measure(rank: Rank) -> None:
    """Run one rank that measures, in turn, the time of a raw broadcast and the time of a sync of the same bytes."""
    import torch

    from verl_npu.features.weight_sync.transport.sync import receive, send
    from verl_npu.features.weight_sync.transport.tensors import Metadata

    joined = _meet(rank, _SECONDS)
    flat = torch.zeros(_BYTES // 2, dtype=torch.bfloat16, device="npu")
    parts = [(f"layers.{place}", part) for place, part in enumerate(flat.split(flat.numel() // 64))]
    metadata = Metadata.of((name, each.shape, each.dtype) for name, each in parts)
    spent: dict[str, list[float]] = {"raw": [], "sync": []}
    for turn in range(4):
        for way in spent:
            joined.messages.exchange(f"{way}/{turn}", b"")
            began = time.perf_counter()
            if way == "raw":
                joined.broadcast(flat.view(torch.uint8)).wait(timedelta(seconds=_SECONDS))
                torch.npu.synchronize()
            elif rank.number == 0:
                send(joined, metadata, parts, Settings(check=Check.NONE))
            else:
                receive(joined, metadata, _Dropped())
            joined.messages.exchange(f"{way}/{turn}/done", b"")
            if turn:
                spent[way].append(time.perf_counter() - began)
    rank.answer(**{way: statistics.median(times) for way, times in spent.items()})
    joined.close()


def _killed(setup: Setup) -> str:
    sender, victim = ranks.started(setup, "killed", 2, ("weight_sync", "lose"), 6 * _PATIENCE)
    if victim.status != -signal.SIGKILL:
        raise RuntimeError(f"the test killed the receiver with SIGKILL, but the receiver {victim.how}")
    said = str(sender.facts.get("said", ""))
    if sender.status is None:
        raise Wrong("the sender waits for it forever", "an error that names the receiver")
    if "rank 1" not in said:
        raise Wrong(said or f"the sender {sender.how}", "an error that names rank 1")
    return f"the sender reports: {said}"


def lose(rank: Rank) -> None:
    """Run one rank of a test in which the receiver is killed before it receives anything."""
    from verl_npu.errors import WeightSyncError
    from verl_npu.features.weight_sync.transport.sync import send
    from verl_npu.features.weight_sync.transport.tensors import Metadata

    joined = _meet(rank, _PATIENCE)
    tensors = _tensors()
    metadata = Metadata.of((name, each.shape, each.dtype) for name, each in tensors.items())
    if rank.number:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        send(joined, metadata, {name: each.npu() for name, each in tensors.items()}.items(), Settings())
        rank.answer(said="nothing: the sync finished")
    except WeightSyncError as error:
        rank.answer(said=str(error)[:600])
    os._exit(0)
