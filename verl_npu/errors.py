"""The errors of verl-npu, under one root.

An error names its subject, what was expected, what was found, how to fix it, and the variable that overrides the
refusal, if there is one. Without `expected`, `found` is a plain sentence about the subject. All errors are in this
module, so that a program can catch them without importing a feature. There is a class for every fault that a caller
would catch separately.
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
            line = _("{subject}: expected {expected}, found {found}; {fix}").format(
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
    """An upstream is not the one that a patch was written for."""


class ApplyError(RegistryError):
    """A patch, of verl-npu or of MindSpeed, cannot be applied, or was called with arguments that it does not
    handle."""


class DamagedError(RegistryError):
    """Patches in the locks are not declared, because files of the package are missing or cut short."""


class CommandError(VerlNpuError):
    """A command cannot be loaded, its distribution is not installed, or it cannot read or write a file."""


class SourceError(RegistryError):
    """A source tree, a wheel, a module or a manifest cannot be read."""


class LogError(VerlNpuError):
    """The log of a job cannot be read."""


# Settings and the environment.


class HangError(VerlNpuError):
    """The job that is to be looked at cannot be told, or its hosts cannot be reached."""


class SettingError(RegistryError):
    """An environment variable of verl-npu has a wrong value."""


class AscendSoftwareError(VerlNpuError):
    """torch_npu is missing or cannot be imported, or an earlier plugin named verl_npu is in the way."""


class UnavailableError(VerlNpuError, ImportError):
    """This environment lacks flash attention for NPUs, or a package that MindSpeed imports.

    It is an ImportError as well, because callers expect one.
    """


class JobSettingError(VerlNpuError):
    """A job cannot run on NPUs with its settings, its model, or the installed rollout engine."""


class CommandLineError(VerlNpuError):
    """A command line of Hydra overrides cannot be read."""


# The job.


class PlacementError(VerlNpuError):
    """The cluster cannot place a job, or Ray assigned a worker an NPU that it cannot see."""


class FleetError(VerlNpuError):
    """The processes of a job have different patches, or settings with which the job cannot run."""


class MicroBatchError(VerlNpuError):
    """The sequences of a rank cannot be split into micro-batches within the token budget."""


# Several machines.


class LaunchError(VerlNpuError):
    """A job cannot be started over several machines, or not as it was asked for."""


# Logs of trainings.


class TrainingLogError(VerlNpuError):
    """A log of a training cannot be read, or cannot be compared with what it is to be compared with."""


# Weight syncs.


class WeightSyncError(VerlNpuError):
    """A weight sync failed, and the rollout engine must not be used with the weights that it holds."""


class GroupError(WeightSyncError):
    """The ranks of a group did not meet, or one of them is gone."""


class TransferError(WeightSyncError):
    """The weights did not arrive on every rank, and the engine does not use them."""


class EngineError(WeightSyncError):
    """The rollout engine cannot take the weights, or does not hold those that it was given."""


# verl on virtual NPUs.


class GraphError(VerlNpuError):
    """An engine would capture graphs, which virtual NPUs do not have. It has not been started."""


class RolloutError(VerlNpuError):
    """The virtual rollout engine cannot do what is asked of it, or not with the weights that it was given."""


# Rehearsals.


class SandboxError(VerlNpuError):
    """This machine cannot make a sandbox for a launch script."""


class ScriptError(VerlNpuError):
    """A launch script cannot be read, or starts no trainer that can be told."""


class CompositionError(VerlNpuError):
    """Hydra does not take a trainer's settings."""


class ContainerError(VerlNpuError):
    """A container with NPUs cannot be had as it was asked for."""


class RehearsalError(VerlNpuError):
    """A rehearsal cannot be made with what was asked for."""


class PlanError(VerlNpuError):
    """A job cannot be planned as it is asked for."""


class ProofError(VerlNpuError):
    """A proof cannot be made, gone on with or read."""


class KernelError(VerlNpuError):
    """Triton kernels cannot be judged: there are none, or their compiler cannot be had."""


# After the run.


class CheckpointError(VerlNpuError):
    """A checkpoint or the model that was merged from it cannot be read, and so they cannot be compared."""
