"""What can go wrong with the virtual Ascend; each message is one line: expected, found, what to do."""

from __future__ import annotations


class VirtualError(RuntimeError):
    """The virtual Ascend cannot be used."""


class SettingError(VirtualError):
    """An environment variable has a value that means nothing."""


class RealAscendError(VirtualError):
    """A real torch_npu is installed here."""


class BuildError(VirtualError):
    """The device extension cannot be compiled or loaded."""


class TorchError(VirtualError):
    """This torch cannot carry the device."""
