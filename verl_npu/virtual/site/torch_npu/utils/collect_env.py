"""What this environment is."""

from __future__ import annotations

import torch

from verl_npu.virtual.cann import CANN_VERSION, DRIVER_VERSION


def get_cann_version() -> str:
    """The CANN version that is pretended."""
    return CANN_VERSION


def get_pretty_env_info() -> str:
    """A short text for reports."""
    lines = (
        f"torch {torch.__version__}",
        f"CANN {CANN_VERSION} (virtual Ascend, SIMULATED)",
        f"driver {DRIVER_VERSION} (virtual Ascend, SIMULATED)",
    )
    return "\n".join(lines)


def main() -> None:
    """Print it."""
    print(get_pretty_env_info())
