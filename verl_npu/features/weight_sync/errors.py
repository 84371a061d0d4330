"""What goes wrong in a weight sync; each message names the rank or the parameter."""

from __future__ import annotations

__all__ = ["EngineError", "GroupError", "MetadataError", "TransferError", "WeightSyncError", "first_line"]


class WeightSyncError(RuntimeError):
    """A weight sync did not happen; the rollout engine must not be used with what it holds."""


class GroupError(WeightSyncError):
    """The ranks of a group did not come together, or one of them is gone."""


class MetadataError(WeightSyncError):
    """The ranks do not agree on names, shapes or dtypes. Nothing was loaded."""


class TransferError(WeightSyncError):
    """The weights did not arrive on every rank. What an engine holds of them is not used."""


class EngineError(WeightSyncError):
    """The rollout engine cannot take the weights, or does not hold what it was given."""


def first_line(error: Exception) -> str:
    """What an error says, without the native frames that torch appends."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
