"""Unmodified upstream verl on Huawei Ascend NPUs. Importing this package activates verl-npu."""

import sys

from . import damage  # noqa: F401  # imported first, because it reports what is wrong with the others
from .activation import PLAIN, activate, deactivate, status
from .version import __version__

__all__ = ["__version__", "activate", "deactivate", "status"]

activate(getattr(sys.modules.get("verl_npu_entry"), "entering", "") or PLAIN)
