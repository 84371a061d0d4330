"""Measures the cost of VERL_NPU_WEIGHT_SYNC_CHECK=engine: a verified sync against the same sync without verification.

    python benchmarks/weight_proof.py [--megabytes 512] [--shares 1 8] [--bandwidth 0 2] [--repeats 5]

It uses two ranks on two virtual NPUs with the virtual hccl (gloo on loopback): SIMULATED. The receiver loads the
weights into a model of linear layers, either completely or as one of several shares (tensor parallelism). It prints
ratios within one run. Loopback is as fast as memory, and a link of real NPUs is slower than their memory, so
`--bandwidth` N limits it to N GB/s. Digests are computed on the host. The figures do not include the copy to the host
on a real NPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from two_ranks import join, start, timed_in_turn

WIDTH = 2048


def rank_main(rank: int, folder: Path, megabytes: int, shares: int, repeats: int) -> None:
    """Measure on one rank. Rank 0 prints the seconds of each way, as JSON."""
    import torch

    from verl_npu.features.weight_sync.engines.proof import Proof
    from verl_npu.features.weight_sync.settings import Check, Settings
    from verl_npu.features.weight_sync.transport.sync import receive, send
    from verl_npu.features.weight_sync.transport.tensors import Metadata

    class ColumnParallelLinear(torch.nn.Module):
        """A layer with the name and sizes of vLLM's."""

        def __init__(self, device: Any) -> None:
            super().__init__()
            self.tp_rank, self.tp_size, self.output_size = shares // 2, shares, WIDTH
            empty = torch.empty(WIDTH // shares, WIDTH, dtype=torch.bfloat16, device=device)
            self.weight = torch.nn.Parameter(empty, requires_grad=False)

    class Engine:
        """Copies its share of the weights, and verifies it on request."""

        def __init__(self, model: Any) -> None:
            self.model, self.proof = model, None

        def load(self, weights: Any) -> None:
            own = dict(self.model.named_parameters())
            for name, tensor in weights:
                size = WIDTH // shares
                own[name].copy_(tensor.narrow(0, shares // 2 * size, size))

        def open(self) -> None:
            """Do nothing, because nothing was closed."""

        def expect(self, weights: Any) -> None:
            self.proof = self.proof or Proof(self.model)
            for name, tensor in weights:
                self.proof.expect(name, tensor)

        def prove(self) -> str:
            verdict = self.proof.conclude()
            self.proof = None
            verdict.require()
            return str(verdict)

    group, device = join(rank, folder)
    count = max(1, (megabytes << 20) // (2 * WIDTH * WIDTH))
    layers = torch.nn.ModuleList([ColumnParallelLinear(device) for _ in range(count if rank else 0)])
    engine = Engine(layers)
    names = [f"{number}.weight" for number in range(count)]
    tensors = [(name, torch.randn(WIDTH, WIDTH, device=device).to(torch.bfloat16)) for name in names]
    metadata = Metadata.of((name, tensor.shape, tensor.dtype) for name, tensor in tensors)

    def sync(check: Check) -> None:
        if rank == 0:
            send(group, metadata, tensors, Settings(check=check))
        else:
            receive(group, metadata, engine)

    spent = timed_in_turn(group, {check.value: partial(sync, check) for check in (Check.NONE, Check.ENGINE)}, repeats)
    group.close()
    if rank == 0:
        print(json.dumps(spent))


def measure(megabytes: int, shares: int, repeats: int, bandwidth: float) -> dict[str, list[float]]:
    """Run both ranks, and return the seconds of rank 0."""
    return start(__file__, [str(megabytes), str(shares), str(repeats)], bandwidth)


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--shares", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--bandwidth", type=float, nargs="+", default=[0, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rank", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank, folder, *numbers = given.rank
        rank_main(int(rank), Path(folder), *map(int, numbers))
        return
    print("SIMULATED: two virtual NPUs, gloo over loopback; only the ratios mean anything, not this machine's seconds")
    print(f"{'GB/s':>5} {'shares':>7} {'sync s':>8} {'proven s':>9} {'ratio of medians (of the best)':>32}")
    for bandwidth, shares in itertools.product(given.bandwidth, given.shares):
        found = measure(given.megabytes, shares, given.repeats, bandwidth)
        alone, proven = found["none"], found["engine"]
        middle = statistics.median(proven) / statistics.median(alone)
        print(
            f"{bandwidth or '-':>5} {shares:>7} {statistics.median(alone):>8.3f} {statistics.median(proven):>9.3f} "
            f"{f'{middle:.2f} ({min(proven) / min(alone):.2f})':>32}",
            flush=True,
        )


if __name__ == "__main__":
    main()
