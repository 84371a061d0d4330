"""Checks each NPU separately: memory, streams, events, and copies between the NPU and the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from ..corpus import Key, Kind, Observation
from ..record import Wrong
from .setup import Setup

_SIZES = (1, 512, 513, 1 << 20, (1 << 20) + 1, 20 << 20)
"""Sizes of allocations in bytes, at and next to the limits of a caching allocator's blocks."""
_WIDTH = 1 << 20
_MIB = 1 << 20


def run(setup: Setup) -> None:
    """Run the checks on every NPU in use."""
    for index in range(setup.npus()):
        for name, tried, meaning in (
            ("memory", _memory, "`torch.npu` reports wrong numbers for memory, by which verl sizes its caches"),
            ("copies", _copies, "batches and weights that are copied between host and NPU would be damaged"),
            ("copies that are waited for", _waited, "code that waits for a copy would read it before it is complete"),
            ("streams", _streams, "work on two streams that wait for each other would run in the wrong order"),
            ("events", _events, "code that waits for an event would continue before the work is done"),
            ("generator", _generator, "two runs with the same seed would differ"),
            ("out of memory", _exhausted, "a job that needs too much memory would not get the right error"),
        ):
            setup.record.check(f"NPU {index}: {name}", _on(index, tried), meaning)
    _observe_memory(setup)


def _on(index: int, tried: Callable[[], str]) -> Callable[[], str]:
    def on_this() -> str:
        import torch

        torch.npu.set_device(index)
        return tried()

    return on_this


def _memory() -> str:
    import torch

    torch.npu.empty_cache()
    before = torch.npu.memory_allocated()
    held = torch.empty(8 * _MIB, dtype=torch.uint8, device="npu")
    taken = torch.npu.memory_allocated() - before
    free, total = torch.npu.mem_get_info()
    del held
    left = torch.npu.memory_allocated() - before
    if taken < 8 * _MIB or left != 0 or not 0 < free <= total:
        raise Wrong(
            f"a tensor of {8 * _MIB} B raised the allocated memory by {taken} B; after the tensor was deleted, {left} "
            f"B were still allocated; {free} of {total} B were free",
            f"the allocated memory to rise by at least {8 * _MIB} B while the tensor exists, and to return to the "
            "earlier value after the tensor is deleted; the free memory to be between 1 B and the total memory",
        )
    return f"{taken} B for {8 * _MIB}; {free / (1 << 30):.2f} of {total / (1 << 30):.2f} GiB are free"


def _copies() -> str:
    import torch

    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool):
        sent = (torch.arange(4099) % 251).to(dtype)
        there = sent.to("npu")
        for name, back in (
            ("there and back", there.cpu()),
            ("a part", torch.cat([there[:7].cpu(), there[7:].cpu()])),
            ("every other one", there[::2].cpu()),
        ):
            expected = sent[::2] if name == "every other one" else sent
            if not torch.equal(back, expected):
                raise Wrong(f"{dtype}, {name}: different numbers", "the numbers that were sent")
    return "7 types, whole, in parts and strided"


def _waited() -> str:
    import torch

    sent = torch.arange(_WIDTH, dtype=torch.float32).pin_memory()
    # The buffer starts with a number that the copy does not contain, so missing parts are visible.
    back = torch.full((_WIDTH,), -1.0).pin_memory()
    for _ in range(5):
        there = sent.to("npu", non_blocking=True)
        back.copy_(there, non_blocking=True)
        torch.npu.synchronize()
        if not torch.equal(back, sent):
            wrong = int((back != sent).sum())
            raise Wrong(
                f"after synchronize(), {wrong} of the {_WIDTH} numbers that were computed are missing", "all numbers"
            )
        back.fill_(-1.0)
    return f"5 times {4 * _WIDTH} B there and back, waited for by synchronize()"


def _streams() -> str:
    import torch

    side, width = torch.npu.Stream(), 512
    for turn in range(5):
        made = torch.full((width, width), float(turn + 1), device="npu")
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            product = made @ made
        torch.npu.current_stream().wait_stream(side)
        found = float((product + 1).cpu()[0, 0])
        expected = width * (turn + 1) ** 2 + 1
        if found != expected:
            raise Wrong(f"{found:g}", f"{expected:g}")
    return "5 products on a second stream, each waited for"


def _events() -> str:
    import torch

    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    one = torch.ones(512, 512, device="npu")
    start.record()
    for _ in range(4):
        one = one @ one / 512
    end.record()
    end.synchronize()
    if not end.query():
        raise Wrong("an event is still not complete after synchronize()", "a completed event")
    passed = float(start.elapsed_time(end))
    if passed < 0:
        raise Wrong(f"{passed} ms between two events", "0 or more")
    return f"{passed:.3f} ms between two events around four products"


def _generator() -> str:
    import torch

    drawn = []
    for _ in range(2):
        torch.npu.manual_seed(7)
        drawn.append(torch.randn(1000, device="npu").cpu())
    if not torch.equal(*drawn):
        raise Wrong("different numbers from the same seed", "the same numbers")
    mean, spread = float(drawn[0].mean()), float(drawn[0].std())
    if not (abs(mean) < 0.2 and 0.8 < spread < 1.2):
        raise Wrong(f"mean {mean:.2f}, deviation {spread:.2f}", "about 0 and 1")
    return "the same numbers from the same seed"


def _exhausted() -> str:
    import torch

    _, total = torch.npu.mem_get_info()
    try:
        torch.empty(int(total) * 2, dtype=torch.uint8, device="npu")
    except torch.OutOfMemoryError:
        return "twice the NPU's memory is refused with torch.OutOfMemoryError"
    except RuntimeError as error:
        raise Wrong(
            f"{type(error).__name__}: {error}",
            "torch.OutOfMemoryError, because programs catch this error if memory runs out",
        ) from error
    raise Wrong("an allocation of twice the NPU's memory succeeded", "torch.OutOfMemoryError")


def _observe_memory(setup: Setup) -> None:
    """Record the memory of allocations, and the time of copies of several sizes."""
    import torch

    torch.npu.set_device(0)
    for size in _SIZES:
        torch.npu.empty_cache()
        before = torch.npu.memory_allocated(), torch.npu.memory_reserved()
        held = torch.empty(size, dtype=torch.uint8, device="npu")
        figures = {
            "allocated": float(torch.npu.memory_allocated() - before[0]),
            "reserved": float(torch.npu.memory_reserved() - before[1]),
        }
        del held
        setup.record.observe(Observation(key=Key(Kind.MEMORY, "empty", f"{size} B"), figures=figures))
    for size in (1 << 10, 1 << 20, 1 << 24):
        sent = torch.zeros(size, dtype=torch.uint8)
        seconds = _seconds(partial(sent.to, "npu"))
        made = Observation(key=Key(Kind.SECONDS, "copy to NPU", f"{size} B"), figures={"seconds": seconds})
        setup.record.observe(made)


def _seconds(done: Callable[[], object]) -> float:
    """Return the shortest duration of five runs. An additional first run is not counted."""
    import torch

    best = float("inf")
    for turn in range(6):
        began = time.perf_counter()
        done()
        torch.npu.synchronize()
        if turn:
            best = min(best, time.perf_counter() - began)
    return best
