"""How fast a weight sync is: against one raw broadcast of the same bytes, and against one broadcast per tensor.

    python benchmarks/weight_sync.py [--tensors 500 20000] [--megabytes 256 2048] [--bandwidth 0 1] [--repeats 5]

Two ranks on two virtual NPUs over the virtual hccl (gloo on loopback): SIMULATED. What is printed are ratios within
one run, for the same tensors over the same communicator; they say nothing of HCCL on real NPUs. The sync includes the
check of metadata and the verdict of both ranks; its loader drops what it gets, as the raw broadcast's receiver does.

Over loopback a message is itself a copy in memory, so packing a bucket, one more copy, costs about as much as moving
it, and on two cores the two take turns. A link is slower than an NPU's memory: with `--bandwidth` N it moves N GB/s at
most (`VIRTUAL_ASCEND_FAULTS=slow:bandwidth=N`), and the packing is hidden behind it or not. 0 is loopback as it is.
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
    """Takes weights and leaves them where they came."""

    def load(self, weights: Any) -> None:
        """Nothing is copied: what an engine does with them is its own time."""

    def open(self) -> None:
        """Nothing was closed."""

    def expect(self, weights: Any) -> None:
        """Nothing is kept."""

    def prove(self) -> str:
        """Nothing is held."""
        return ""


def rank_main(rank: int, folder: Path, count: int, megabytes: int, repeats: int) -> None:
    """Measure on one rank; rank 0 prints for each way the median and the best of its seconds, as JSON."""
    import torch

    from verl_npu.features.weight_sync.settings import Check, Settings
    from verl_npu.features.weight_sync.transport.sync import receive, send
    from verl_npu.features.weight_sync.transport.tensors import Metadata

    group, device = join(rank, folder)

    elements = megabytes * (1 << 20) // 2 // count
    # Of one piece of memory: a model of 2 GB and its copy on the other rank must fit beside each other.
    flat = torch.zeros(elements * count, dtype=torch.bfloat16, device=device)
    parts = flat.split(elements)
    tensors = [(f"layers.{number}.weight", part.view(-1, 1)) for number, part in enumerate(parts)]
    metadata = Metadata.of((name, tensor.shape, tensor.dtype) for name, tensor in tensors)
    raw = flat.view(torch.uint8)
    sink = Sink()

    def one_broadcast() -> None:
        group.broadcast(raw).wait(LIMIT)

    def one_each() -> None:
        # As upstream's loop: a new tensor, a copy into it on the source, a broadcast, and the wait for it.
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
    """Run both ranks and return the median and the best of rank 0 in seconds, by way."""
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
    print("SIMULATED: two virtual NPUs, gloo over loopback; seconds are of this machine, only ratios mean anything")
    print(
        "share of the raw broadcast's bandwidth, of the medians (and of the best runs, spoilt less by a busy machine)"
    )
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
