"""Changes TORCH_DEVICE_BACKEND_AUTOLOAD in the same way as an import of torch_npu. The behavior depends on torch_npu's
version.

torch_npu sets the variable to 0 before it imports torch, because torch would otherwise import torch_npu again. If
torch was imported first, torch_npu restores the variable. If torch_npu is imported first, some versions leave the
variable at 0. The child processes then start without torch_npu.
"""

from __future__ import annotations

import os
import sys

from packaging.version import Version

from . import variables
from .variables import AUTOLOAD

_RESTORING = ("2.7.1.post11", "2.9.0.post9", "2.10.0.post7", "2.12.0.post3")
"""The first version of each release series that restores the variable. From 2.13 on, every version does."""


def switch_off() -> str:
    """Set TORCH_DEVICE_BACKEND_AUTOLOAD to 0, and return its previous value."""
    before = os.environ.get(AUTOLOAD, "1")
    os.environ[AUTOLOAD] = "0"
    return before


def switch_back(before: str, torch_was_there: bool) -> None:
    """Restore TORCH_DEVICE_BACKEND_AUTOLOAD if torch was imported before torch_npu, or if the emulated torch_npu
    version always restores the variable."""
    if torch_was_there or restores(variables.TORCH_NPU_VERSION.text()):
        os.environ[AUTOLOAD] = before


def torch_is_there() -> bool:
    """Return whether torch is imported, or is being imported."""
    return "torch" in sys.modules


def restores(version: str) -> bool:
    """Return whether this version of torch_npu restores TORCH_DEVICE_BACKEND_AUTOLOAD when it is imported before
    torch."""
    found = Version(version)
    return found >= Version("2.13") or any(
        found.release == first.release and found >= first for first in map(Version, _RESTORING)
    )
