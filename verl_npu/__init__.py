"""Unmodified upstream verl on Huawei Ascend NPUs. Importing this package activates it."""

from .activation import activate, deactivate, status
from .version import __version__

__all__ = ["__version__", "activate", "deactivate", "status"]

activate()
