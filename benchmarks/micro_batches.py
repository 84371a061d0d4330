"""Measures the cost of keeping the token budget: our partition against upstream's, on the same batches in one run.

Each batch has as many sequences as one rank has in RL, with a certain mix of lengths. Upstream's partition has as many
bins as the tokens fill. It balances lengths, as at 796871d7, or work, as from v0.6.1 on; ours gets the same weights.
The machine is noisy, and the ratios are not. Run it from a clone, in an environment that has verl-npu and verl:
`python benchmarks/micro_batches.py`.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from verl_npu.features.micro_batches.packing import Bins, pack, spread

# The mixes are in the tests, which are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.features.micro_batches.mixes import MIXES, first_fit_decreasing, work

CALLS = 20  # few, because taking the sequences out of the batch is slow

Split = Callable[[list[int], int, list[int]], Bins]


def ours(lengths: list[int], budget: int, weights: list[int]) -> Bins:
    """Return our partition."""
    packed = pack(lengths, budget)
    return spread(packed, lengths, budget, len(packed), weights)


def upstreams(lengths: list[int], budget: int, weights: list[int]) -> Bins:
    """Return upstream's partition, with the number of bins that upstream chooses."""
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

    count = min(len(lengths), -(-sum(lengths) // budget))
    return get_seqlen_balanced_partitions(weights, count, equal_size=False)


@dataclass(slots=True)
class Tally:
    """The results of one way of splitting, for all batches of a mix."""

    bins: int = 0
    over: int = 0
    worst: float = 0.0
    unevenness: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def split(self, split: Split, lengths: list[int], budget: int, weights: list[int]) -> None:
        """Split one batch, and record the result."""
        began = time.process_time()
        bins = split(lengths, budget, weights)
        self.seconds.append(time.process_time() - began)
        most = max(_sums(bins, lengths)) / budget
        loads = _sums(bins, weights)
        self.bins += len(bins)
        self.over += most > 1
        self.worst = max(self.worst, most)
        self.unevenness.append(max(loads) / statistics.mean(loads))


def _sums(bins: Bins, values: Sequence[int]) -> list[int]:
    return [sum(values[index] for index in one) for one in bins]


def rows(mix: str, batches: int) -> list[tuple[str, ...]]:
    """Split the same random batches of a mix in both ways, in turns, and return the rows of the table."""
    draw, budget = MIXES[mix]
    found = []
    for name, weigh in {"lengths": list, "work": work}.items():
        chance, ffd = random.Random(0), 0
        them, us = Tally(), Tally()
        for _ in range(batches):
            lengths = draw(chance)
            ffd += first_fit_decreasing(lengths, budget)
            them.split(upstreams, lengths, budget, weigh(lengths))
            us.split(ours, lengths, budget, weigh(lengths))
        for way, tally in (("upstream", them), ("verl-npu", us)):
            found.append(
                (
                    f"{mix}, {name}",
                    way,
                    f"{tally.over / batches:.1%}",
                    f"{tally.worst:.2f}",
                    f"{tally.bins / batches:.2f}",
                    f"{tally.bins / ffd:.4f}",
                    f"{statistics.mean(tally.unevenness):.3f}",
                    f"{statistics.median(tally.seconds) * 1e3:.2f} ms",
                    f"{statistics.median(tally.seconds) / statistics.median(them.seconds):.3f}",
                )
            )
    return found


def calls(batches: int) -> Table:
    """Time the installed verl's rearrange_micro_batches without padding, unchanged and patched, in turns."""
    from tests.features.micro_batches.upstream import load, nested, patched

    os.environ["VERL_NPU_TOKEN_BUDGET"] = "1"
    modules = {"upstream": load("installed"), "patched": patched("installed")}
    table = Table("mix", *modules, "ratio", title=f"The whole rearrange_micro_batches, median of {batches} batches")
    for mix, (draw, budget) in MIXES.items():
        chance = random.Random(0)
        seconds: dict[str, list[float]] = {name: [] for name in modules}
        for _ in range(batches):
            batch = nested(draw(chance))
            for name, module in modules.items():
                began = time.process_time()
                module.rearrange_micro_batches(batch, max_token_len=budget)
                seconds[name].append(time.process_time() - began)
        before, after = (statistics.median(each) for each in seconds.values())
        table.add_row(mix, f"{before * 1e3:.2f} ms", f"{after * 1e3:.2f} ms", f"{after / before:.3f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=300, help="random batches of each mix (default 300)")
    batches = parser.parse_args().batches
    table = Table(
        "mix, balanced by",
        "",
        "batches over",
        "fullest",
        "bins",
        "bins / FFD",
        "heaviest",
        "time",
        "/ upstream",
        title=f"The partition, {batches} batches for each mix. over: batches with a bin over the budget; fullest: the "
        "fullest\nbin / budget; FFD: first-fit-decreasing; heaviest: the heaviest bin / mean; time: median",
    )
    for mix in MIXES:
        for row in rows(mix, batches):
            table.add_row(*row)
    console = Console(width=120)
    console.print(table)
    console.print(calls(CALLS))


if __name__ == "__main__":
    main()
