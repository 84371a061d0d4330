"""Kill processes of jobs and say what came of it: `python -m tests.e2e.killed FOLDER [FAULT …]`; logs are kept."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[5] / "scripts"))

from .striking import FAULTS, row, strike

for fault in FAULTS:
    if not sys.argv[2:] or str(fault) in sys.argv[2:]:
        print(row(strike(fault, Path(sys.argv[1]).resolve())), flush=True)
