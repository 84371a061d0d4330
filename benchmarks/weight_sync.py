"""Compares the speed of a weight sync with one raw broadcast of the same bytes, and with one broadcast per tensor.

    python benchmarks/weight_sync.py [--tensors 500 20000] [--megabytes 256 2048] [--bandwidth 0 1] [--repeats 5]

It uses two ranks on two virtual NPUs with the virtual hccl (gloo on loopback): SIMULATED. It prints ratios within one
run, for the same tensors and the same communicator. They say nothing about HCCL on real NPUs. The sync includes the
check of metadata and the verdict of both ranks. Its loader drops the weights, as the receiver of the raw broadcast
does.

On loopback a message is a copy in memory. So packing a bucket, which is one more copy, costs about as much as moving
it, and on two cores they cannot overlap. A real link is slower than an NPU's memory. `--bandwidth` N limits loopback
to N GB/s (`VIRTUAL_ASCEND_FAULTS=slow:bandwidth=N`), which shows whether packing overlaps with moving. 0 does not
limit it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from two_ranks import join, start, timed_in_turn

LIMIT = timedelta(minutes=10)


class Sink:
    """An engine that drops the weights."""

    def load(self, weights: Any) -> None:
        """Drop the weights, because the time of a real engine does not count."""

    def open(self) -> None:
        """Do nothing, because nothing was closed."""

    def expect(self, weights: Any) -> None:
        """Do nothing, because nothing is verified."""

    def prove(self) -> str:
        """Return no result, because there are no weights."""
        return ""


def rank_main(rank: int, folder: Path, count: int, megabytes: int, repeats: int) -> None:
    """Measure on one rank. Rank 0 prints the median and the best time of each way in seconds, as JSON."""
    import torch

    from verl_npu.features.weight_sync.settings import Check, Settings
    from verl_npu.features.weight_sync.transport.sync import receive, send
    from verl_npu.features.weight_sync.transport.tensors import Metadata

    group, device = join(rank, folder)

    elements = megabytes * (1 << 20) // 2 // count
    # All tensors share one piece of memory, so that a model of 2 GB and its copy on the other rank fit.
    flat = torch.zeros(elements * count, dtype=torch.bfloat16, device=device)
    parts = flat.split(elements)
    tensors = [(f"layers.{number}.weight", part.view(-1, 1)) for number, part in enumerate(parts)]
    metadata = Metadata.of((name, tensor.shape, tensor.dtype) for name, tensor in tensors)
    raw = flat.view(torch.uint8)
    sink = Sink()

    def one_broadcast() -> None:
        group.broadcast(raw).wait(LIMIT)

    def one_each() -> None:
        # Like upstream's loop: a new tensor, a copy into it on the source, a broadcast, and the wait for it.
        for _, tensor in tensors:
            moved = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
            if rank == 0:
                moved.copy_(tensor)
            group.broadcast(moved).wait(LIMIT)

    def sync(check: Check) -> Callable[[], None]:
        settings = Settings(check=check)

        def run() -> None:
            if rank == 0:
                send(group, metadata, tensors, settings)
            else:
                receive(group, metadata, sink)

        return run

    ways = {
        "raw": one_broadcast,
        "sync": sync(Check.NONE),
        "sync with checksums": sync(Check.CHECKSUMS),
        "each": one_each,
    }
    spent = timed_in_turn(group, ways, repeats, slow=["each"])
    group.close()
    if rank == 0:
        print(json.dumps({name: [statistics.median(times), min(times)] for name, times in spent.items()}))


def measure(count: int, megabytes: int, repeats: int, bandwidth: float) -> dict[str, tuple[float, float]]:
    """Run both ranks, and return rank 0's median and best time of each way in seconds."""
    return start(__file__, [str(count), str(megabytes), str(repeats)], bandwidth)


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, nargs="+", default=[500, 20000])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--bandwidth", type=float, nargs="+", default=[0, 1])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rank", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank, folder, count, megabytes, repeats = given.rank
        rank_main(int(rank), Path(folder), int(count), int(megabytes), int(repeats))
        return
    print("SIMULATED: two virtual NPUs, gloo over loopback; only the ratios mean anything, not this machine's seconds")
    print("share of the raw broadcast's bandwidth, by the medians (by the best runs)")
    print(f"{'GB/s':>5} {'MB':>6} {'tensors':>8} {'raw s':>14} {'sync':>16} {'with checksums':>16} {'each':>14}")
    for bandwidth, megabytes, count in itertools.product(given.bandwidth, given.megabytes, given.tensors):
        found = measure(count, megabytes, given.repeats, bandwidth)
        median, best = found["raw"]
        shares = [f"{median / found[w][0]:.1%} ({best / found[w][1]:.1%})" for w in list(found)[1:]]
        print(
            f"{bandwidth or '-':>5} {megabytes:>6} {count:>8} {f'{median:.3f} ({best:.3f})':>14} "
            f"{shares[0]:>16} {shares[1]:>16} {shares[2]:>14}",
            flush=True,
        )


if __name__ == "__main__":
    main()
