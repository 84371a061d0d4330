"""The NPUs of fine-tuning are torchrun's: with more of them its options change, which are no settings of Hydra."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ...rehearse.trainer import Trainer

__all__ = ["NODES", "RANKS", "is_option", "launched_with"]

RANKS = "--nproc_per_node"
NODES = "--nnodes"
_FIELDS = {RANKS: "ranks", NODES: "nodes"}


def is_option(key: str) -> bool:
    """Return whether a change is one of torchrun's options."""
    return key in _FIELDS


def launched_with(trainer: Trainer, changes: Iterable[tuple[str, object]]) -> Trainer:
    """Return a trainer as torchrun starts it with those of these changes that are its options."""
    options = {_FIELDS[key]: value for key, value in changes if is_option(key)}
    return dataclasses.replace(trainer, **options)  # type: ignore[arg-type]
