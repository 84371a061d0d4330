"""The phases of a training step, and who can hold memory in them."""

from __future__ import annotations

from enum import Enum

__all__ = ["Holder", "Phase"]


class Phase(Enum):
    """What a rank of verl's does, in the order of a step."""

    LOAD = "load"
    ROLLOUT = "rollout"
    LOG_PROB = "log-probabilities"
    REFERENCE = "reference"
    VALUES = "values"
    UPDATE_CRITIC = "update critic"
    UPDATE_ACTOR = "update actor"
    CHECKPOINT = "checkpoint"
    WEIGHT_SYNC = "weight sync"


class Holder(Enum):
    """What memory is for. The order is that of csrc/ledger.h: its own three, then those that a rank tells."""

    ACTIVATIONS = "activations and temporary buffers"
    MESSAGES = "communication buffers"
    GATHERED = "gathered weights"
    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer's state"

    @property
    def number(self) -> int:
        """What csrc/ledger.h calls it."""
        return list(Holder).index(self)
