"""What of this process is simulated."""

from __future__ import annotations

import sys

__all__ = ["description", "loaded"]


def loaded() -> bool:
    """Whether the virtual Ascend is up in this process."""
    return bool(description())


def description() -> str:
    """What is simulated in this process, for its summary; empty if nothing is."""
    # By name: a process without virtual NPUs, which asks as well, imports neither.
    real = sys.modules.get(f"{__package__}.real.loading")
    if real is not None and real.is_loaded():
        return f"virtual NPUs under torch_npu {real.version()}"
    ours = sys.modules.get(f"{__package__}.device.extension")
    if ours is None or not ours.is_loaded():
        return ""
    least = ours.extension().phantom()
    return f"virtual NPUs, PHANTOM: no values from {least / (1 << 20):g} MiB on" if least else "virtual NPUs"
