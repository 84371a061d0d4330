"""Every error of verl-npu that a user can meet, under one root.

An error says what it is about, what was expected, what was found, how to mend it, and, where there is one, the
variable that overrides the refusal. All of them are here and not beside what raises them, so that a program can catch
them without importing a feature.
"""

from __future__ import annotations

from .language import gettext as _


class VerlNpuError(RuntimeError):
    """The root of all errors of verl-npu; its text is one line."""

    def __init__(self, *, subject: str, expected: str, found: str, fix: str, override: str = "") -> None:
        self.subject = subject
        self.expected = expected
        self.found = found
        self.fix = fix
        self.override = override
        super().__init__(str(self))

    def __str__(self) -> str:
        line = _("{subject}: expected {expected}, found {found}; {fix}").format(
            subject=self.subject, expected=self.expected, found=self.found, fix=self.fix
        )
        return line + _(" (override: {override})").format(override=self.override) if self.override else line

    # RuntimeError's own reduction would call __init__ with the text alone: a Ray worker could not report us.
    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.subject, self.expected, self.found, self.fix, self.override))


def _rebuild(
    kind: type[VerlNpuError], subject: str, expected: str, found: str, fix: str, override: str
) -> VerlNpuError:
    return kind(subject=subject, expected=expected, found=found, fix=fix, override=override)


# The registry.


class RegistryError(VerlNpuError):
    """The root of what the registry raises: a feature is refused, or nothing is patched."""


class DeclarationError(RegistryError):
    """A patch, a feature or a target is declared wrongly."""


class ConflictError(RegistryError):
    """Two patches change the same target."""


class DriftError(RegistryError):
    """An upstream is not what a patch was written for."""


class ApplyError(RegistryError):
    """A verified patch could not be applied to the live object."""


class DamagedError(RegistryError):
    """Patches that the locks list are not declared: files of the package are missing or cut short."""


class LockError(RegistryError):
    """A lock file cannot be read, or is of another version."""


class CommandError(VerlNpuError):
    """A command cannot be loaded, or the distribution that has it is not installed."""


class SourceError(RegistryError):
    """A source tree, a wheel, a module or a manifest cannot be read."""


class LogError(VerlNpuError):
    """The log of a job cannot be read."""


# What the user sets.


class HangError(VerlNpuError):
    """The job that is to be looked at cannot be told, or its hosts cannot be reached."""


class SettingError(RegistryError):
    """An environment variable has a value that is not understood."""


class AscendSoftwareError(VerlNpuError):
    """torch_npu cannot be imported, or is not there."""


class EarlierPluginError(VerlNpuError):
    """An earlier plugin of the same name is in the same process."""


class CommandLineError(VerlNpuError):
    """A command line of Hydra overrides cannot be read."""


class DeviceContradictionError(VerlNpuError):
    """The user sets trainer.device=cuda, and this installation is for NPUs."""


class AttentionSettingError(VerlNpuError):
    """The model's configuration has a setting that flash attention on NPUs would ignore without an error."""


class NoFlashAttentionError(VerlNpuError, ImportError):
    """This version of transformers cannot reach the NPU's flash attention.

    It is an ImportError as well: transformers raises one if flash attention is missing, and callers catch that.
    """


class RearrangeError(VerlNpuError):
    """verl-npu's `rearrange`, which replaces that of einops, was called with a pattern that it does not know."""


class OverrideError(VerlNpuError):
    """MindSpeed would not do what these overrides say. Nothing has been changed."""


# The job.


class PlacementError(VerlNpuError):
    """A placement group needs more than the cluster has, or more than is free in time."""


class HiddenDeviceError(VerlNpuError):
    """Ray assigned a worker an NPU that ASCEND_RT_VISIBLE_DEVICES hides from it."""


class EngineSettingError(VerlNpuError):
    """A rollout engine would not start with the job's settings, or with the releases that are installed."""


class FleetError(VerlNpuError):
    """The processes of a job differ in what is patched, or have settings with which the job cannot run."""


class MicroBatchError(VerlNpuError):
    """The sequences of a rank cannot be split into micro-batches that keep their token budget."""


class RewriteError(VerlNpuError):
    """A function of upstream does not contain the import or the constant that a patch replaces in it."""


class MindSpeedImportError(VerlNpuError, ImportError):
    """A package that MindSpeed imports is missing. An ImportError too, because that is what importers expect."""


class RepatchError(VerlNpuError):
    """MindSpeed failed while it changed Megatron; what it had changed was taken back."""


class OverrideConflictError(VerlNpuError):
    """Two workers of one process want different MindSpeed settings, and MindSpeed has one for a process."""


# Several machines.


class LaunchError(VerlNpuError):
    """A job cannot be started over several machines, or not as it was asked for."""


# Logs of trainings.


class TrainingLogError(VerlNpuError):
    """A log of a training cannot be read, or cannot be compared with what it is to be compared with."""


# Weight syncs.


class WeightSyncError(VerlNpuError):
    """A weight sync did not happen; the rollout engine must not be used with what it holds."""


class GroupError(WeightSyncError):
    """The ranks of a group did not come together, or one of them is gone."""


class MetadataError(WeightSyncError):
    """The ranks do not agree on names, shapes or dtypes. Nothing was loaded."""


class TransferError(WeightSyncError):
    """The weights did not arrive on every rank. What an engine holds of them is not used."""


class EngineError(WeightSyncError):
    """The rollout engine cannot take the weights, or does not hold what it was given."""


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
