"""What is known to be wrong with a launch script before it runs: each guard looks at one thing.

A guard refuses only what is shown to fail: by Hydra, by an assertion of upstream's that it names, or by MindSpeed.
What cannot be shown is a warning.
"""

from __future__ import annotations

from collections.abc import Iterable

from .base import Finding, Script
from .batches import batches
from .environment import exports, segments
from .kernels import fused_kernels
from .keys import empty, engine, shadowed
from .layout import parallel_sizes
from .mindspeed import overrides
from .paths import files
from .platform import device

__all__ = ["GUARDS", "Finding", "Script", "findings"]

GUARDS = (device, shadowed, empty, engine, parallel_sizes, batches, overrides, segments, fused_kernels, exports, files)


def findings(script: Script) -> list[Finding]:
    """Return what all guards find, refusals first."""
    found: Iterable[Finding] = (finding for guard in GUARDS for finding in guard(script))
    return sorted(found, key=lambda finding: not finding.refused)
