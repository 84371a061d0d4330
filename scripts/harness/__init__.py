"""What quickstart.sh and smoke.sh do: an environment, a job, and what came of it."""

from __future__ import annotations

import sys
from pathlib import Path

# The Python that makes the environment has no verl-npu, of which `start` uses what needs no other package.
_PROJECT = Path(__file__).resolve().parents[2]
sys.path += [str(_PROJECT), str(_PROJECT / "packages" / "verl-npu-workbench")]
