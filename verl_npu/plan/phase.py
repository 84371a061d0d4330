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
    TRAINING = "training step"
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"
    WEIGHT_SYNC = "weight sync"

    @property
    def trains(self) -> bool:
        """Whether an optimizer takes a step in it: it is given mini batches, and others all of a step."""
        return self in (Phase.UPDATE_CRITIC, Phase.UPDATE_ACTOR, Phase.TRAINING)


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
