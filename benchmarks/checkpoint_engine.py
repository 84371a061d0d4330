"""Compares the speed of upstream's HCCL checkpoint engine with one raw broadcast of the same bytes.

    python benchmarks/checkpoint_engine.py [--tensors 500] [--megabytes 256] [--bucket 64] [--bandwidth 0 1]

It uses two ranks on two virtual NPUs with the virtual hccl (gloo on loopback): SIMULATED. A trainer sends and a server
receives, as in `trainer.v1.trainer_mode=separate_async`, and the server drops the weights. It prints two ratios within
one run: the bytes that the engine broadcasts for each byte of weights (its last bucket is sent whole even if it is
almost empty), and the share of the raw broadcast's bandwidth. weight_sync.py explains `--bandwidth`. It needs verl
0.7.1 or newer.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from two_ranks import join, start, timed_in_turn

LIMIT = timedelta(minutes=10)


def rank_main(rank: int, folder: Path, count: int, megabytes: int, bucket: int, repeats: int) -> None:
    """Measure on one rank. Rank 0 prints the seconds of each way, and the bytes of a sync, as JSON."""
    import torch

    group, device = join(rank, folder)
    from verl.checkpoint_engine import CheckpointEngineRegistry

    flat = torch.zeros(megabytes << 19, dtype=torch.bfloat16, device=device)
    raw = flat.view(torch.uint8)
    engine: Any = CheckpointEngineRegistry.new("nccl", bucket << 20, is_master=rank == 0)
    master = engine.prepare()
    if rank == 0:
        # The other rank reads this file.
        (folder / "master").write_text(json.dumps([vars(master)]))
    group.messages.exchange("master", b"")
    if rank:
        (fields,) = json.loads((folder / "master").read_text())
        master = type("Master", (), fields)
    engine.init_process_group(rank, 2, master)
    moved = [0]
    broadcast = engine.pyhccl.broadcast

    def counted(tensor: torch.Tensor, src: int) -> None:
        moved[0] += tensor.nbytes
        broadcast(tensor, src)

    engine.pyhccl.broadcast = counted

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        yield from ((f"layers.{number}.weight", part) for number, part in enumerate(flat.chunk(count)))

    async def take() -> None:
        async for _ in engine.receive_weights():
            pass

    def sync() -> None:
        asyncio.run(take() if rank else engine.send_weights(weights()))

    ways = {"raw": lambda: group.broadcast(raw).wait(LIMIT), "engine": sync}
    spent = timed_in_turn(group, ways, repeats)
    group.close()
    if rank == 0:
        print(json.dumps(spent | {"bytes": moved[0] / (repeats + 1) / raw.nbytes}))


def main() -> None:
    """Print a line for each bandwidth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=500)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--bucket", type=int, nargs="+", default=[64], help="update_weights_bucket_megabytes")
    parser.add_argument("--bandwidth", type=float, nargs="+", default=[0, 1])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rank", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank, folder, *numbers = given.rank
        rank_main(int(rank), Path(folder), *map(int, numbers))
        return
    print("SIMULATED: two virtual NPUs, gloo over loopback; only the ratios mean anything, not this machine's seconds")
    print(f"{'GB/s':>5} {'bucket MB':>9} {'raw s':>8} {'engine s':>8} {'bytes':>6} {'bandwidth':>10}")
    for bandwidth, bucket in itertools.product(given.bandwidth, given.bucket):
        words = [str(number) for number in (given.tensors, given.megabytes, bucket, given.repeats)]
        found = start(__file__, words, bandwidth)
        raw, engine = statistics.median(found["raw"]), statistics.median(found["engine"])
        line = f"{raw:>8.3f} {engine:>8.3f} {found['bytes']:>6.2f} {raw / engine:>10.1%}"
        print(f"{bandwidth or '-':>5} {bucket:>9} {line}", flush=True)


if __name__ == "__main__":
    main()
