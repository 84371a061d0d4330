"""Packing of sequences into bins within a token budget.

The number of bins comes from first-fit-decreasing; a caller may request more. First, the sequences are spread evenly
over that number of bins. If a bin then exceeds the budget, the bins of first-fit-decreasing are used instead, and
balanced.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ...errors import JobSettingError

if TYPE_CHECKING:
    import torch

Bins = list[list[int]]
"""For each bin, the indices of its sequences."""


def pack(lengths: Sequence[int], budget: int) -> Bins:
    """Pack sequences into bins by first-fit-decreasing. Raises JobSettingError if a single sequence exceeds the
    budget."""
    bins: Bins = []
    rooms: list[int] = []
    for index in _decreasing(lengths):
        length = lengths[index]
        if length > budget:
            raise JobSettingError(
                subject=f"micro-batches of at most {budget} tokens",
                expected="only sequences that fit the budget",
                found=f"a sequence of {length} tokens",
                fix="raise the budget or shorten the sequence",
            )
        for number, room in enumerate(rooms):
            if length <= room:
                rooms[number] = room - length
                bins[number].append(index)
                break
        else:
            rooms.append(budget - length)
            bins.append([index])
    return bins


def spread(packed: Bins, lengths: Sequence[int], budget: int, count: int, weights: Sequence[int]) -> Bins:
    """Return `count` bins that fit the budget and have about equal sums of `weights`. This is a fast heuristic.

    `packed` is the result of `pack` for the same lengths and budget. Raises JobSettingError in the same cases as
    `check_count`.
    """
    check_count(count, packed, lengths, budget)
    distributed = _distributed(lengths, budget, count, weights)
    bins = distributed or _balanced([list(one) for one in packed], lengths, budget, count, weights)
    return [sorted(one) for one in bins]


def check_count(count: int, packed: Bins, lengths: Sequence[int], budget: int) -> None:
    """Raise JobSettingError if the sequences cannot fill `count` bins within the budget."""
    if not len(packed) <= count <= len(lengths):
        raise JobSettingError(
            subject="the number of micro-batches on this rank",
            expected=f"at least {len(packed)} micro-batches, because of the budget of {budget} tokens, and at most "
            f"{len(lengths)}, which is the number of sequences",
            found=f"{count} micro-batches (the maximum over all ranks, rounded up for virtual pipeline parallelism)",
            fix="raise the *_max_token_len_per_gpu of this worker, or give each rank more sequences",
            override="VERL_NPU_TOKEN_BUDGET=0",
        )


def _decreasing(weights: Sequence[int]) -> list[int]:
    return sorted(range(len(weights)), key=weights.__getitem__, reverse=True)


def _distributed(lengths: Sequence[int], budget: int, count: int, weights: Sequence[int]) -> Bins | None:
    """Put each sequence, heaviest first, into the lightest bin that has room for it. Return the bins, or None if no
    bin has room."""
    bins: Bins = [[] for _ in range(count)]
    rooms = [budget] * count
    # Among equally light bins, the one with fewer sequences wins, so that sequences without weight leave no bin empty.
    lightest = [(0, 0, number) for number in range(count)]
    for index in _decreasing(weights):
        full = []
        while lightest and rooms[lightest[0][2]] < lengths[index]:
            full.append(heapq.heappop(lightest))
        if not lightest:
            return None
        load, held, number = lightest[0]
        bins[number].append(index)
        rooms[number] -= lengths[index]
        heapq.heapreplace(lightest, (load + weights[index], held + 1, number))
        for one in full:
            heapq.heappush(lightest, one)
    return bins


def _balanced(bins: Bins, lengths: Sequence[int], budget: int, count: int, weights: Sequence[int]) -> Bins:
    """Add bins until there are `count`. Then move sequences from the heaviest bin to the lightest, as long as that
    balances them."""
    while len(bins) < count:
        bins.append([max(bins, key=len).pop()])
    loads = [sum(weights[index] for index in one) for one in bins]
    rooms = [budget - sum(lengths[index] for index in one) for one in bins]
    for _ in lengths:
        heavy, light = loads.index(max(loads)), loads.index(min(loads))
        gap = loads[heavy] - loads[light]
        movable = [index for index in bins[heavy] if 0 < weights[index] < gap and lengths[index] <= rooms[light]]
        if not movable or len(bins[heavy]) == 1:
            break
        moved = max(movable, key=weights.__getitem__)
        bins[heavy].remove(moved)
        bins[light].append(moved)
        for number, sign in ((heavy, -1), (light, 1)):
            loads[number] += sign * weights[moved]
            rooms[number] -= sign * lengths[moved]
    return bins


_MARK = 1 << 40
"""A sentinel value for a sequence that is too long. The sum of this value and the length of the sequence is passed to
the other ranks as the number of micro-batches. The sum is larger than any real number of micro-batches."""


Batch: TypeAlias = "Mapping[str, torch.Tensor]"
"""One of upstream's batches: a TensorDict."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The sequences to divide into micro-batches, given by their lengths in tokens.

    If `group_size` is greater than 1, each item of `lengths` is the total length of a group of sequences that must
    stay together.
    """

    lengths: Sequence[int]
    group_size: int
    budget: int
    longest: int
    """The length that upstream compares with the budget. For padded sequences, it includes the padding."""
    packed: Bins
    """The bins within the budget. Empty if a single sequence exceeds the budget."""

    @classmethod
    def of(cls, batch: Batch, budget: int, group_size: int) -> Demand | None:
        """Return a `Demand` for the sequences of a batch, or None if there is nothing to split or if upstream would
        not split the batch."""
        lengths, width = _lengths(batch)
        if not lengths or len(lengths) % group_size:
            return None
        grouped = [sum(lengths[first : first + group_size]) for first in range(0, len(lengths), group_size)]
        longest = max(width, *grouped)
        return cls(grouped, group_size, budget, longest, pack(grouped, budget) if longest <= budget else [])

    @property
    def fits(self) -> bool:
        """Whether every sequence is within the budget."""
        return self.longest <= self.budget

    @property
    def least(self) -> int:
        """The smallest possible number of micro-batches. If a sequence is too long, this is a sentinel value, which
        signals the error to all ranks."""
        return len(self.packed) if self.fits else _MARK + self.longest

    @property
    def allowed(self) -> int:
        """The token budget that is passed to upstream. The budget is large enough for every sequence, so that upstream
        does not raise an error before the ranks have agreed on a number of micro-batches."""
        return max(self.budget, self.longest)

    def check_agreed(self, agreed: int, rounded: int) -> None:
        """Raise JobSettingError if a rank has a sequence that is too long, or if this rank has too few sequences."""
        if agreed > _MARK:
            raise self._too_long(agreed - _MARK)
        check_count(rounded, self.packed, self.lengths, self.budget)

    def split(self, count: int, weights: Sequence[int]) -> Bins:
        """Return `count` bins within the budget. Raises JobSettingError if a sequence is too long, or if there are
        fewer sequences than bins."""
        if not self.fits:
            raise self._too_long(self.longest)
        if len(weights) != len(self.lengths):
            raise self._unknown(f"a batch of {len(weights)} instead of {len(self.lengths)} sequences or groups")
        return spread(self.packed, self.lengths, self.budget, count, weights)

    def check_result(self, indices: Bins) -> None:
        """Raise JobSettingError if one of upstream's micro-batches still exceeds the budget."""
        # The sequences of a group are next to each other in the result, so we count the first one of each group.
        most = max(sum(self.lengths[index // self.group_size] for index in one[:: self.group_size]) for one in indices)
        if most > self.budget:
            raise self._unknown(f"a micro-batch of {most} tokens")

    def _too_long(self, length: int) -> JobSettingError:
        kind = "a sequence" if self.group_size == 1 else f"{self.group_size} sequences that must stay together"
        found = f"{kind} of {length} tokens, padding included" if not self.fits else ""
        return JobSettingError(
            subject=f"micro-batches of at most {self.budget} tokens",
            expected="only sequences that fit the budget",
            found=found or f"a sequence of {length} tokens on another rank",
            fix="raise the *_max_token_len_per_gpu of this worker (the budget is the value of this setting "
            "multiplied by the sequence-parallel size), or lower data.max_prompt_length or "
            "data.max_response_length",
        )

    def _unknown(self, found: str) -> JobSettingError:
        return JobSettingError(
            subject="verl.utils.seqlen_balancing:rearrange_micro_batches",
            expected=f"micro-batches of at most {self.budget} tokens",
            found=found,
            fix="report this error, because verl-npu does not support how this verl version splits batches",
            override="VERL_NPU_TOKEN_BUDGET=0",
        )


def _lengths(batch: Batch) -> tuple[list[int], int]:
    """Return the length of each sequence, and the longest length as upstream compares it with the budget."""
    sequences = batch["input_ids"] if "input_ids" in batch.keys() else None  # noqa: SIM118  # a TensorDict is no dict
    if sequences is not None and sequences.is_nested:
        nested: list[int] = sequences.offsets().diff().tolist()
        return nested, max(nested, default=0)
    mask = batch["attention_mask"]
    return mask.sum(dim=1).long().tolist(), mask.shape[-1]
