"""Unmodified upstream verl on Huawei Ascend NPUs. Importing this package activates it."""

from .activation import activate, deactivate, status

__all__ = ["__version__", "activate", "deactivate", "status"]
__version__ = "0.1.0.dev0"

activate()
