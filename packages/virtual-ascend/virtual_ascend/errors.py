"""The errors of virtual-ascend, which all derive from one class.

An error names its subject, what was expected, what was found, and how to fix it. Without `expected`, `found` is a
plain sentence about the subject.
"""

from __future__ import annotations


class VirtualAscendError(RuntimeError):
    """The base class of all virtual-ascend errors. The message is one line."""

    def __init__(self, *, subject: str, found: str, fix: str, expected: str = "") -> None:
        self.subject = subject
        self.expected = expected
        self.found = found
        self.fix = fix
        super().__init__(str(self))

    def __str__(self) -> str:
        found = f"expected {self.expected}; found {self.found}" if self.expected else self.found
        return f"{self.subject}: {found}; {self.fix}"

    # RuntimeError's own reduction would call __init__ with the text alone, and unpickling in another process would
    # fail.
    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.subject, self.expected, self.found, self.fix))


def _rebuild(kind: type[VirtualAscendError], subject: str, expected: str, found: str, fix: str) -> VirtualAscendError:
    return kind(subject=subject, expected=expected, found=found, fix=fix)


class SettingError(VirtualAscendError):
    """Raised when an environment variable has an invalid value."""


class RealAscendError(VirtualAscendError):
    """Raised when this environment has a real torch_npu or CANN. virtual-ascend cannot be loaded alongside a real
    one."""


class BuildError(VirtualAscendError):
    """Raised when the virtual device cannot be compiled or loaded."""


class TorchError(VirtualAscendError):
    """Raised when virtual NPUs cannot be loaded into this process's torch, or are required but not loaded."""
