"""What tests say of the processes that they start."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from virtual_ascend.testing import NPUS_OF_A_TEST as DEVICES

__all__ = ["DEVICES", "Run", "project_and"]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def project_and(folder: Path) -> str:
    """PYTHONPATH with a folder behind what it has."""
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(folder)])
