"""Upstream's HF rollout, which answers each prompt n times although the trainer has repeated it n times."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ...registry.source.probe import Mentions, Not
from .feature import rollout

__all__ = ["answered_once"]


@rollout.wrap(
    "verl.workers.rollout.hf_rollout:HFRollout.__init__",
    why="the trainer repeats every prompt n times, and the HF rollout n times again: with n above 1 no row fits",
    how="the engine is built from a copy of its configuration in which n is 1; the trainer's n stays",
    link="none: upstream took the second repetition out after 796871d7 without an issue that names it",
    retired_by=Not(Mentions("verl.workers.rollout.hf_rollout:HFRollout._generate_minibatch", "n")),
)
def answered_once(
    original: Callable[..., None], self: Any, module: Any, config: Any, *args: Any, **kwargs: Any
) -> None:
    """Build the engine for prompts that the trainer has repeated already."""
    once = copy.deepcopy(config)
    once.n = 1
    original(self, module, once, *args, **kwargs)
