"""Upstream's HF rollout, which repeats each prompt n times after the trainer has repeated it n times."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Protocol

from ...registry.source.probe import Mentions, Not
from .feature import rollout

__all__ = ["prevent_double_repetition_in_hf_rollout"]


class RolloutConfig(Protocol):
    """The configuration of a rollout engine."""

    n: int


@rollout.wrap(
    "verl.workers.rollout.hf_rollout:HFRollout.__init__",
    why="The trainer repeats every prompt n times, and the HF rollout n times again. With n above 1 training fails: "
    "`Two tensor dict must have identical batch size`.",
    how="The engine is built from a copy of its configuration in which n is 1; the trainer's n stays.",
    link="none: upstream took the second repetition out after 796871d7 without an issue that names it",
    # The whole module: the number may be read in one method and used in another.
    retired_by=Not(Mentions("verl.workers.rollout.hf_rollout", "n")),
)
def prevent_double_repetition_in_hf_rollout(
    original: Callable[..., None], self: object, module: object, config: RolloutConfig, *args: object, **kwargs: object
) -> None:
    """Build the engine for prompts that the trainer has already repeated."""
    once = copy.deepcopy(config)
    once.n = 1
    original(self, module, once, *args, **kwargs)
