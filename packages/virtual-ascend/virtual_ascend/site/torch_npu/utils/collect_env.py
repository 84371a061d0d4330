"""What this environment is."""

from __future__ import annotations

import torch
from virtual_ascend.settings import Settings


def get_cann_version() -> str:
    """The CANN version that is pretended."""
    return Settings.read().cann_version


def get_pretty_env_info() -> str:
    """A short text for reports."""
    settings = Settings.read()
    lines = (
        f"torch {torch.__version__}",
        f"CANN {settings.cann_version} (virtual Ascend, SIMULATED)",
        f"driver {settings.driver_version} (virtual Ascend, SIMULATED)",
    )
    return "\n".join(lines)


def main() -> None:
    """Print it."""
    print(get_pretty_env_info())
