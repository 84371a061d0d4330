"""Changes TORCH_DEVICE_BACKEND_AUTOLOAD as the import of torch_npu does, which depends on the version.

torch_npu sets the variable to 0 before it imports torch, which would otherwise import torch_npu again. If torch was
imported first, the variable is set back. If torch_npu comes first, some versions leave it at 0, and the children of
the process start without torch_npu.
"""

from __future__ import annotations

import os
import sys

from packaging.version import Version

from . import variables
from .variables import AUTOLOAD

_RESTORING = ("2.7.1.post11", "2.9.0.post9", "2.10.0.post7", "2.12.0.post3")
"""The first version of each series that sets the variable back; from 2.13 on every version does."""


def switch_off() -> str:
    """Set the variable to 0, and return its value before."""
    before = os.environ.get(AUTOLOAD, "1")
    os.environ[AUTOLOAD] = "0"
    return before


def switch_back(before: str, torch_was_there: bool) -> None:
    """Set the variable back if torch came first, or if the torch_npu that we pretend to be does so."""
    if torch_was_there or restores(variables.TORCH_NPU_VERSION.text()):
        os.environ[AUTOLOAD] = before


def torch_is_there() -> bool:
    """Tell whether torch is imported, or is being imported."""
    return "torch" in sys.modules


def restores(version: str) -> bool:
    """Tell whether this version of torch_npu sets the variable back when it is imported before torch."""
    found = Version(version)
    return found >= Version("2.13") or any(
        found.release == first.release and found >= first for first in map(Version, _RESTORING)
    )
