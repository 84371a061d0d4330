"""What the judgement makes of mutants, counted: `VERL_NPU_UPSTREAMS=FOLDER python -m tests.pins [PIN ...]`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from verl_npu.registry.source.tree import SourceTree

from .losses import LOCKS, Outcome, pin_at
from .mutants import Kind

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))


def main() -> int:
    """Print a table of the kinds of mutants and what came of them; status 1 if anything was said silently."""
    from maintain import sources

    counts: Counter[tuple[Kind, Outcome]] = Counter()
    silent: list[str] = []
    start = time.monotonic()
    beside = SourceTree.at(sources.find("transformers", "4.57.6"), ("transformers",))
    for name in sys.argv[1:] or [lock.pin for lock in LOCKS["verl"]]:
        pin = pin_at(name, sources.all_of("verl", name)[0], beside)
        for mutant in pin.losses():
            outcome, wrong = pin.outcome(mutant)
            counts[mutant.kind, outcome] += 1
            silent += wrong
    print(f"| mutant | {' | '.join(outcome.value for outcome in Outcome)} | all |")
    print("|---" * (len(Outcome) + 2) + "|")
    for kind in dict.fromkeys(kind for kind, _ in counts):
        row = [counts[kind, outcome] for outcome in Outcome]
        print(f"| {kind.value} | {' | '.join(map(str, row))} | {sum(row)} |")
    print(f"\n{counts.total()} mutants in {time.monotonic() - start:.0f} s")
    print("\n".join(silent))
    return int(bool(silent))


if __name__ == "__main__":
    sys.exit(main())
