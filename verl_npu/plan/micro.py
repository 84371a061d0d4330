"""Micro batches: which setting says how large those of a phase are, and how many sequences show the largest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..rehearse.settings import Settings
from .phase import Phase
from .roles import has_critic, has_reference

__all__ = ["MicroBatch", "enough", "fullest", "micro_batches"]

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_REFERENCE = "actor_rollout_ref.ref"
_DEEPEST = 2
"""Micro batches that a phase is given: the second one finds the gradients of the first."""
_ALMOST = 0.97
"""Of the most tokens: longer sequences that come so close are preferred to many short ones."""
_UNEVEN = 4
"""Micro batches of sequences that are not alike: verl makes them from all of a mini batch."""


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
    inner: int
    """NPUs that share a sequence."""
    together: bool = False
    """Whether the setting is that of all ranks together."""
    bounded: bool = False
    """Whether none has more tokens than its budget."""

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
            return -(-of // max(self.size * self.inner // length, 1))
        return -(-of * length // max(self.size * self.inner, 1))

    def widened(self, length: int, of: int) -> MicroBatch:
        """Return it with a budget that holds the largest of so many sequences, which may overdraw its own."""
        if not self.dynamic:
            return self
        return replace(self, size=max(self.size, -(-self.sequences(length, of) * length // self.inner)))


def micro_batches(settings: Settings, data: int, bounded: bool = False) -> tuple[MicroBatch, ...]:
    """Return those of all phases that a script has.

    Args:
        data: ranks, or groups of ranks, with data of their own; sizes of all of them together are divided by it.
        bounded: whether they keep to their token budgets.
    """
    found = [
        _of(settings, Phase.UPDATE_ACTOR, _ACTOR, f"{_ACTOR}.ppo", f"{_ACTOR}.use_dynamic_bsz", data),
        _of(settings, Phase.LOG_PROB, _ACTOR, f"{_ROLLOUT}.log_prob", f"{_ROLLOUT}.log_prob_use_dynamic_bsz", data),
    ]
    if has_reference(settings):
        dynamic = f"{_REFERENCE}.log_prob_use_dynamic_bsz"
        found.append(_of(settings, Phase.REFERENCE, _REFERENCE, f"{_REFERENCE}.log_prob", dynamic, data))
    if has_critic(settings):
        dynamic = "critic.use_dynamic_bsz"
        found.append(_of(settings, Phase.UPDATE_CRITIC, "critic", "critic.ppo", dynamic, data))
        found.append(_of(settings, Phase.VALUES, "critic", "critic.forward", dynamic, data))
    return tuple(replace(batch, bounded=bounded and batch.dynamic) for batch in found)


def _of(settings: Settings, phase: Phase, role: str, prefix: str, dynamic: str, data: int) -> MicroBatch:
    keys = ["ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size"]
    if settings.text(f"{role}.strategy") == "megatron":
        keys = ["megatron.context_parallel_size"]
    inner = max(1, *(settings.whole(f"{role}.{key}", 1) for key in keys))
    tokens, each, together = (
        f"{prefix}_{name}" for name in ("max_token_len_per_gpu", "micro_batch_size_per_gpu", "micro_batch_size")
    )
    if settings.truth(dynamic) and settings.whole(tokens) > 0:
        return MicroBatch(phase, tokens, True, settings.whole(tokens), inner)
    if settings.whole(each) <= 0 < settings.whole(together):
        return MicroBatch(phase, together, False, max(settings.whole(together) // data, 1), inner, together=True)
    return MicroBatch(phase, each, False, max(settings.whole(each, 1), 1), inner)


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
        budget = batch.size * batch.inner
        if batch.bounded:
            lengths |= {budget // sequences for sequences in range(-(-budget // longest), of)}
        else:
            lengths |= {number * budget // of for number in range(1, batch.number(longest, of))}
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
