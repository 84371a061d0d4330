"""Changes that are no settings of Hydra: torchrun's options, which say the NPUs of fine-tuning, and a variable."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from .. import environment
from ..rehearse.trainer import Trainer

__all__ = ["NODES", "RANKS", "is_setting", "launched_with"]

RANKS = "--nproc_per_node"
NODES = "--nnodes"
_FIELDS = {RANKS: "ranks", NODES: "nodes"}


def is_setting(key: str) -> bool:
    """Return whether a change is one of Hydra's settings."""
    return key not in _FIELDS and key != environment.TOKEN_BUDGET.name


def launched_with(trainer: Trainer, changes: Iterable[tuple[str, object]]) -> Trainer:
    """Return a trainer as it is started with those of these changes that are no settings."""
    given = dict(changes)
    options = {_FIELDS[key]: value for key, value in given.items() if key in _FIELDS}
    variables = {key: str(value) for key, value in given.items() if key == environment.TOKEN_BUDGET.name}
    exports = {**trainer.exports, **variables}
    return dataclasses.replace(trainer, exports=exports, **options)  # type: ignore[arg-type]
