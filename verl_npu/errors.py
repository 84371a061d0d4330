"""The errors of verl-npu, all derived from one class.

An error names its subject, what was expected, what was found, how to fix it, and, if there is one, the variable that
overrides the check. Without `expected`, `found` is a plain sentence about the subject. All errors are in this module,
so that a program can catch them without importing a feature. An error gets its own class only if callers catch it
separately.
"""

from __future__ import annotations

from .language import gettext as _


class VerlNpuError(RuntimeError):
    """The root of all errors of verl-npu. Its text is one line."""

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
    """The root of the registry's errors: a feature is refused, or nothing is patched."""


class DeclarationError(RegistryError):
    """A patch, a feature or a target is declared wrongly, two of them conflict, or a lock cannot be read."""


class DriftError(RegistryError):
    """An upstream differs from the upstream for which a patch was written."""


class ApplyError(RegistryError):
    """A patch, of verl-npu or of MindSpeed, cannot be applied, or was called with arguments that it does not
    handle."""


class DamagedError(RegistryError):
    """Patches in the locks are not declared, because files of the package are missing or cut short."""


class SourceError(RegistryError):
    """An input cannot be read: a source tree, a wheel, a manifest, a launch script, a log, or a checkpoint."""


class SettingError(RegistryError):
    """An environment variable of verl-npu has a wrong value."""


# Commands.


class CommandError(VerlNpuError):
    """A command cannot be loaded, cannot read or write a file, or cannot do what its arguments ask for."""


class PlanError(VerlNpuError):
    """A job cannot be planned as the user asked, for example because the sizes of its model are unknown."""


class SandboxError(VerlNpuError):
    """This machine cannot make a sandbox for a launch script."""


# The environment and the job.


class AscendSoftwareError(VerlNpuError):
    """torch_npu is missing or cannot be imported, or an earlier plugin named verl_npu is in the way."""


class UnavailableError(VerlNpuError, ImportError):
    """This environment lacks flash attention for NPUs, or a package that MindSpeed imports.

    It is an ImportError as well, because callers expect one.
    """


class JobSettingError(VerlNpuError):
    """A job cannot run with its settings, its model, or the installed rollout engine."""


class LaunchError(VerlNpuError):
    """A job cannot be placed on the cluster, or cannot be started over several machines."""


class FleetError(VerlNpuError):
    """The processes of a job have different patches, or this job's settings do not allow it to run."""


# Rollouts and weight syncs.


class RolloutError(VerlNpuError):
    """The virtual rollout engine cannot do what the trainer asks for, or cannot use the weights that it was given."""


class WeightSyncError(VerlNpuError):
    """A weight sync failed, or the rollout engine cannot take the weights or does not hold them. The engine must not
    be used afterwards."""


class GroupError(WeightSyncError):
    """The ranks of a group did not meet, or one of them is gone."""


class TransferError(WeightSyncError):
    """The weights did not arrive on every rank, and the engine does not use them."""
