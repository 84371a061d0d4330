"""The work of quickstart.sh and smoke.sh: an environment, a job, and its results."""

from __future__ import annotations

import sys
from pathlib import Path

# The Python that makes the environment has no verl-npu. `start` uses only parts of it that need no other package.
_PROJECT = Path(__file__).resolve().parents[2]
sys.path += [str(_PROJECT), str(_PROJECT / "packages" / "verl-npu-workbench")]
