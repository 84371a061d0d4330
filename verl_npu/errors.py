"""The errors of verl-npu, all derived from one class.

An error names its subject, what was expected, what was found, how to fix it, and, if there is one, the variable that
overrides the check. Without `expected`, `found` is a plain sentence about the subject. All errors are in this module,
so that a program can catch them without importing a feature. An error gets its own class only if callers catch it
separately.
"""

from __future__ import annotations

from .language import gettext as _


class VerlNpuError(RuntimeError):
    """The base class of all errors of verl-npu. The text of an error is one line."""

    def __init__(self, *, subject: str, found: str, fix: str, expected: str = "", override: str = "") -> None:
        self.subject = subject
        self.expected = expected
        self.found = found
        self.fix = fix
        self.override = override
        super().__init__(str(self))

    def __str__(self) -> str:
        if self.expected:
            line = _("{subject}: expected {expected}; found {found}; {fix}").format(
                subject=self.subject, expected=self.expected, found=self.found, fix=self.fix
            )
        else:
            line = _("{subject}: {found}; {fix}").format(subject=self.subject, found=self.found, fix=self.fix)
        return line + _(" (override: {override})").format(override=self.override) if self.override else line

    # RuntimeError's own reduction would call __init__ with the text alone, so a Ray worker could not report the error.
    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.subject, self.expected, self.found, self.fix, self.override))


def _rebuild(
    kind: type[VerlNpuError], subject: str, expected: str, found: str, fix: str, override: str
) -> VerlNpuError:
    return kind(subject=subject, found=found, fix=fix, expected=expected, override=override)


# The registry.


class RegistryError(VerlNpuError):
    """The base class of the registry's errors. Such an error means that a feature is refused, or that nothing is
    patched."""


class DeclarationError(RegistryError):
    """Raised when a patch, feature, or target is declared incorrectly, when two declarations conflict, or when a lock
    cannot be read."""


class DriftError(RegistryError):
    """Raised when an upstream differs from the revision that a patch was written for."""


class ApplyError(RegistryError):
    """Raised when a patch of verl-npu or of MindSpeed cannot be applied, or when it is called with arguments that it
    does not handle."""


class DamagedError(RegistryError):
    """Raised when the locks contain patches that the code does not declare, because files of the package are missing
    or truncated."""


class SourceError(RegistryError):
    """Raised when an input cannot be read: a source tree, a wheel, a manifest, a launch script, a log, or a
    checkpoint."""


class SettingError(RegistryError):
    """Raised when an environment variable of verl-npu has an invalid value."""


# Commands.


class CommandError(VerlNpuError):
    """Raised when a command cannot be loaded, cannot read or write a file, or cannot do what its arguments request."""


class PlanError(VerlNpuError):
    """Raised when a job cannot be planned as the user requested, for example because the sizes of its model are
    unknown."""


class SandboxError(VerlNpuError):
    """Raised when a sandbox for a launch script cannot be created on this machine."""


# The environment and the job.


class AscendSoftwareError(VerlNpuError):
    """Raised when torch_npu is missing or cannot be imported, or when an earlier plugin, also named verl_npu, is
    loaded."""


class UnavailableError(VerlNpuError, ImportError):
    """Raised when this environment lacks flash attention for NPUs, or a package that MindSpeed imports.

    The class is also derived from ImportError, because callers catch ImportError.
    """


class JobSettingError(VerlNpuError):
    """Raised when a job cannot run with its settings, its model, or the installed rollout engine."""


class LaunchError(VerlNpuError):
    """Raised when a job cannot be placed on the cluster, or cannot be started on several machines."""


class FleetError(VerlNpuError):
    """Raised when the processes of a job have different patches, or when the settings of the job do not allow it to
    run."""


# Rollouts and weight syncs.


class RolloutError(VerlNpuError):
    """Raised when the virtual rollout engine cannot do what the trainer requests, or cannot use the weights that it
    received."""


class WeightSyncError(VerlNpuError):
    """Raised when a weight sync fails, or when the rollout engine cannot load the weights or holds other weights after
    the sync. The engine must not be used afterwards."""


class GroupError(WeightSyncError):
    """Raised when the ranks of a weight sync do not all join the group in time, or when a rank has exited or does not
    respond."""


class TransferError(WeightSyncError):
    """Raised when the weights did not arrive on every rank. The engine does not use the weights."""
