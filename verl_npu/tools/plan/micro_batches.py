"""Micro batches: which setting says how large those of a phase are, and how many sequences show the largest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ... import environment
from ...features.micro_batches import BOUNDED_UPSTREAM
from ...registry.source.tree import SourceTree
from ..jobs.keys import ACTOR, CRITIC, REFERENCE, ROLLOUT, has_critic, has_reference
from ..jobs.layout import parallelism_of
from ..jobs.settings import Settings
from ..jobs.trainer import Trainer
from .job import Phase

__all__ = ["MicroBatch", "enough", "fullest", "keeps_budget", "micro_batches"]

_VERL = ("verl",)
_DEEPEST = 2
"""Micro batches that a phase is given: the second one finds the gradients of the first."""
_ALMOST = 0.97
"""Of the most tokens: longer sequences that come so close are preferred to many short ones."""
_UNEVEN = 4
"""Micro batches of sequences that are not alike: verl makes them from all of a mini batch."""


def keeps_budget(trainer: Trainer, tree: Path) -> bool:
    """Whether the script's verl does so by itself, or `VERL_NPU_TOKEN_BUDGET=1` has it do so.

    Otherwise verl makes as few micro batches as their tokens need, some of which then hold more. A tree without verl
    is started with the one that is installed.
    """
    asked = environment.TOKEN_BUDGET.read({**os.environ, **trainer.exports})
    if asked:
        return True
    # A folder of that name may be a clone, which is no package.
    has_verl = (tree / _VERL[0] / "__init__.py").is_file()
    return BOUNDED_UPSTREAM.holds(SourceTree.at(tree, _VERL) if has_verl else SourceTree.installed(_VERL))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The micro batches of one phase."""

    phase: Phase
    key: str
    """The setting that says how large they are."""
    dynamic: bool
    """Whether they are filled by tokens."""
    size: int
    """Sequences; of dynamic ones the tokens of one NPU."""
    sequence_parallel: int
    """NPUs that share a sequence."""
    together: bool = False
    """Whether the setting is that of all ranks together."""
    bounded: bool = False
    """Whether none has more tokens than its budget."""

    @property
    def budget(self) -> int:
        """Tokens of a dynamic one, on all NPUs that share its sequences."""
        return self.size * self.sequence_parallel

    def sequences(self, length: int, of: int) -> int:
        """Return how many sequences of one length the largest has, of a batch with so many.

        verl makes as few dynamic ones as their tokens need, and divides the sequences evenly among these: unless they
        are bounded, one can have more tokens than it should. Source: verl/utils/seqlen_balancing.py,
        `rearrange_micro_batches`.
        """
        if not self.dynamic:
            return min(self.size, of)
        return -(-of // min(self.number(length, of), of))

    def number(self, length: int, of: int) -> int:
        """Return how many micro batches so many sequences make."""
        if not self.dynamic:
            return -(-of // self.size)
        if self.bounded:
            return -(-of // max(self.budget // length, 1))
        return -(-of * length // max(self.budget, 1))

    def widened(self, length: int, of: int) -> MicroBatch:
        """Return it with a budget that holds the largest of so many sequences, which may overdraw its own."""
        if not self.dynamic:
            return self
        return replace(self, size=max(self.size, -(-self.sequences(length, of) * length // self.sequence_parallel)))


def micro_batches(settings: Settings, data: int, bounded: bool = False) -> tuple[MicroBatch, ...]:
    """Return those of all phases that a script has.

    Args:
        data: ranks, or groups of ranks, with data of their own; sizes of all of them together are divided by it.
        bounded: whether they keep to their token budgets.
    """
    rows = [
        (Phase.UPDATE_ACTOR, ACTOR, f"{ACTOR}.ppo", f"{ACTOR}.use_dynamic_bsz"),
        (Phase.LOG_PROB, ACTOR, f"{ROLLOUT}.log_prob", f"{ROLLOUT}.log_prob_use_dynamic_bsz"),
    ]
    if has_reference(settings):
        rows.append((Phase.REFERENCE, REFERENCE, f"{REFERENCE}.log_prob", f"{REFERENCE}.log_prob_use_dynamic_bsz"))
    if has_critic(settings):
        dynamic = f"{CRITIC}.use_dynamic_bsz"
        rows.append((Phase.UPDATE_CRITIC, CRITIC, f"{CRITIC}.ppo", dynamic))
        rows.append((Phase.VALUES, CRITIC, f"{CRITIC}.forward", dynamic))
    found = [_of(settings, *row, data) for row in rows]
    return tuple(replace(batch, bounded=bounded and batch.dynamic) for batch in found)


def _of(settings: Settings, phase: Phase, role: str, prefix: str, dynamic: str, data: int) -> MicroBatch:
    sizes = parallelism_of(settings, role)
    shared = sizes.context * sizes.sequence
    tokens, each, together = (
        f"{prefix}_{name}" for name in ("max_token_len_per_gpu", "micro_batch_size_per_gpu", "micro_batch_size")
    )
    if settings.truth(dynamic) and settings.whole(tokens) > 0:
        return MicroBatch(phase, tokens, True, settings.whole(tokens), shared)
    if settings.whole(each) <= 0 < settings.whole(together):
        size = max(settings.whole(together) // data, 1)
        return MicroBatch(phase, together, False, size, shared, together=True)
    return MicroBatch(phase, each, False, max(settings.whole(each, 1), 1), shared)


def fullest(found: Sequence[MicroBatch], longest: int, of: int) -> int:
    """Return the length of a sequence with which the largest micro batch of so many sequences has the most tokens.

    A budget that holds all sequences of a rank if they are shorter is divided if they have the greatest length: then
    the longest sequences are not the most tokens. Where one phase has so many sequences and not so many tokens, they
    are the longest.
    """
    if not found or not all(batch.dynamic for batch in found):
        return longest

    def tokens(length: int) -> int:
        return max(batch.sequences(length, of) * length for batch in found)

    lengths = {longest}
    for batch in found:
        if batch.bounded:
            lengths |= {batch.budget // sequences for sequences in range(-(-batch.budget // longest), of)}
        else:
            lengths |= {number * batch.budget // of for number in range(1, batch.number(longest, of))}
    most = {length: tokens(length) for length in lengths if length > 0}
    return max(length for length, held in most.items() if held >= _ALMOST * max(most.values()))


def enough(found: Sequence[MicroBatch], length: int, most: int, alike: bool) -> int:
    """Return the least number of sequences that shows the largest micro batch of each phase.

    Args:
        length: tokens of a sequence; their mean, if they are not alike.
        most: sequences that a rank has: of a mini batch to train on, of a step otherwise.
        alike: whether all sequences have that length.
    """

    def shows(batch: MicroBatch, sequences: int) -> bool:
        if not batch.dynamic:
            return sequences % batch.size == 0 and sequences >= _DEEPEST * batch.size
        if not alike:
            return batch.number(length, sequences) >= _UNEVEN
        number, largest = batch.number(length, sequences), batch.sequences(length, sequences)
        # How many are the largest: the others have a sequence less.
        largest_ones = sequences - (largest - 1) * number
        return largest_ones >= _DEEPEST and largest == batch.sequences(length, most)

    return next((each for each in range(1, most) if all(shows(batch, each) for batch in found)), most)
