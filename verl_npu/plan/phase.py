"""The phases of a training step, and who can hold memory in them."""

from __future__ import annotations

from enum import Enum

__all__ = ["TOLD", "Holder", "Phase"]


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
    """What memory is for, in csrc/ledger.h's order: its own three, those that a rank tells; last what is no tensor."""

    ACTIVATIONS = "activations and temporary buffers"
    MESSAGES = "communication buffers"
    GATHERED = "gathered weights"
    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer's state"
    ENGINE = "rollout engine's weights"
    CACHE = "key-value cache"
    RESERVE = "reserve"

    @property
    def number(self) -> int:
        """What csrc/ledger.h calls it."""
        return list(Holder).index(self)


TOLD = tuple(Holder)[: Holder.CACHE.number]
"""Those of tensors, which a ledger has."""
