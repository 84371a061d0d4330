"""The virtual Ascend compared with real NPUs: `python -m tests.replay BUNDLE [--wheel FOLDER]`.

BUNDLE comes from `verl-npu prove`. Its observations of operators and device are repeated on our own virtual device
and, with FOLDER a torch_npu that `pip install --target` put there, on that wheel over the stub CANN; the differences
of each are printed. Status 1 if there is a difference other than rounding and wording.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from verl_npu_workbench.prove import bundle, corpus
from verl_npu_workbench.prove.corpus import Other

from .running import OURS, made, wheel

HARMLESS = (Other.ROUNDS, Other.WORDS)
"""A real NPU rounds differently, and words its errors differently."""


def main() -> int:
    """Replay, and print a line for each difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--wheel", type=Path, help="a folder with a torch_npu, for the second way")
    parser.add_argument(
        "--all", action="store_true", help="print what only rounds otherwise, or says it otherwise, too"
    )
    given = parser.parse_args()
    recorded = bundle.read(given.bundle)
    ways = {"our own device": OURS, **({"the wheel": wheel(given.wheel)} if given.wheel else {})}
    status = 0
    for name, variables in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            found = made(Path(folder), variables)
        differences = list(corpus.compared(recorded.corpus, found.corpus))
        counts = Counter(each.how for each in differences)
        told = ", ".join(f"{count} {other.value}" for other, count in counts.items()) or "none"
        both = corpus.in_both(recorded.corpus, found.corpus)
        print(f"{name} ({found.simulated}): {both} compared; differences: {told}")
        for each in differences:
            if given.all or each.how not in HARMLESS:
                print(f"  {each}")
        status |= any(each.how not in HARMLESS for each in differences)
    return status


if __name__ == "__main__":
    sys.exit(main())
