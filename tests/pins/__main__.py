"""What the judgement makes of mutants, counted: `VERL_NPU_UPSTREAMS=FOLDER python -m tests.pins [PIN ...]`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from verl_npu.registry.source.tree import SourceTree

from .losses import LOCKS, Outcome, pin_at
from .mutants import Kind

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

Counts = Mapping[tuple[str, Kind, Outcome], int]


def main() -> int:
    """Print what came of the mutants, by kind and by pin; status 1 if anything was said silently."""
    from maintain import sources

    counts: Counter[tuple[str, Kind, Outcome]] = Counter()
    silent: list[str] = []
    start = time.monotonic()
    beside = SourceTree.at(sources.find("transformers", "4.57.6"), ("transformers",))
    for name in sys.argv[1:] or [lock.pin for lock in LOCKS["verl"]]:
        pin = pin_at(name, sources.all_of("verl", name)[0], beside)
        for mutant in pin.losses():
            outcome, wrong = pin.outcome(mutant)
            counts[name, mutant.kind, outcome] += 1
            silent += wrong
    print("\n".join(table(counts)))
    print(f"\n{counts.total()} mutants in {time.monotonic() - start:.0f} s")
    print("\n".join(silent))
    return int(bool(silent))


def table(counts: Counts) -> Iterator[str]:
    """Yield the lines of a Markdown table: a row for each kind, a column for each pin, and what came of all."""
    pins = list(dict.fromkeys(pin for pin, _, _ in counts))
    kinds = list(dict.fromkeys(kind for _, kind, _ in counts))
    yield f"| mutant | {' | '.join(pins)} | all | {' | '.join(outcome.value for outcome in Outcome)} |"
    yield "|---" * (len(pins) + len(Outcome) + 2) + "|"
    for name, group in [*((kind.value, {kind}) for kind in kinds), ("all", set(kinds))]:
        here = {key: count for key, count in counts.items() if key[1] in group}
        cells = [sum(count for key, count in here.items() if key[0] == pin) for pin in pins]
        outcomes = [sum(count for key, count in here.items() if key[2] is outcome) for outcome in Outcome]
        yield f"| {name} | {' | '.join(map(str, [*cells, sum(cells), *outcomes]))} |"


if __name__ == "__main__":
    sys.exit(main())
