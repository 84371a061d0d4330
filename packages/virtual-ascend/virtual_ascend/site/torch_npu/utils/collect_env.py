"""Describes this environment."""

from __future__ import annotations

import torch
from virtual_ascend.settings import Settings


def get_cann_version() -> str:
    """Return the version of CANN that virtual-ascend emulates."""
    return Settings.read().cann_version


def get_pretty_env_info() -> str:
    """Return a short description of the environment for reports."""
    settings = Settings.read()
    lines = (
        f"torch {torch.__version__}",
        f"CANN {settings.cann_version} (virtual Ascend, SIMULATED)",
        f"driver {settings.driver_version} (virtual Ascend, SIMULATED)",
    )
    return "\n".join(lines)


def main() -> None:
    """Print the description of the environment."""
    print(get_pretty_env_info())
