"""What importing torch_npu does to TORCH_DEVICE_BACKEND_AUTOLOAD, by version.

It sets the variable to 0 before it imports torch, which would otherwise import torch_npu again. If torch was there
first, torch has it set back. If torch_npu comes first, several versions leave it, and what the process starts comes up
without torch_npu.
"""

from __future__ import annotations

import os
import sys

from packaging.version import Version

from . import variables
from .variables import AUTOLOAD

_RESTORING = ("2.7.1.post11", "2.9.0.post9", "2.10.0.post7", "2.12.0.post3")
"""In each series the first version that sets it back; from 2.13 on all do."""


def switch_off() -> str:
    """Set the variable to 0, and return what it was."""
    before = os.environ.get(AUTOLOAD, "1")
    os.environ[AUTOLOAD] = "0"
    return before


def switch_back(before: str, torch_was_there: bool) -> None:
    """Set the variable back, if torch came first or the pretended version of torch_npu does so."""
    if torch_was_there or restores(variables.TORCH_NPU_VERSION.text()):
        os.environ[AUTOLOAD] = before


def torch_is_there() -> bool:
    """Whether torch is imported, or is being imported."""
    return "torch" in sys.modules


def restores(version: str) -> bool:
    """Whether this version of torch_npu sets the variable back when it is imported before torch."""
    found = Version(version)
    return found >= Version("2.13") or any(
        found.release == first.release and found >= first for first in map(Version, _RESTORING)
    )
