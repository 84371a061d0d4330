"""Unmodified upstream verl on Huawei Ascend NPUs. Importing this package activates it."""

from .activation import activate, autoload, deactivate, status  # noqa: F401  # the last tells that the file is whole
from .version import __version__

__all__ = ["__version__", "activate", "deactivate", "status"]

activate()
