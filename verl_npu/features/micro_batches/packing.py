"""Sequences packed into bins within a budget of tokens.

The number of bins is that of first-fit-decreasing, or larger if more are asked for. With that number the sequences are
dealt out evenly; only if that exceeds the budget, the bins of first-fit-decreasing are taken and evened out.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ...errors import MicroBatchError

if TYPE_CHECKING:
    import torch

Bins = list[list[int]]
"""The indices of the sequences in each bin."""


def pack(lengths: Sequence[int], budget: int) -> Bins:
    """Return the bins of first-fit-decreasing. Raises MicroBatchError if a sequence alone is too long."""
    bins: Bins = []
    rooms: list[int] = []
    for index in _decreasing(lengths):
        length = lengths[index]
        if length > budget:
            raise MicroBatchError(
                subject=f"micro-batches of at most {budget} tokens",
                expected="each sequence alone to fit",
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
    """Return `count` bins within the budget that are even in their sums of `weights`, as far as that is had quickly.

    `packed` is what `pack` made of the same lengths and budget. Raises MicroBatchError as `check_count` does.
    """
    check_count(count, packed, lengths, budget)
    dealt = _dealt(lengths, budget, count, weights)
    bins = dealt or _evened([list(one) for one in packed], lengths, budget, count, weights)
    return [sorted(one) for one in bins]


def check_count(count: int, packed: Bins, lengths: Sequence[int], budget: int) -> None:
    """Raise MicroBatchError if the sequences cannot fill `count` bins within the budget."""
    if not len(packed) <= count <= len(lengths):
        raise MicroBatchError(
            subject=f"{count} micro-batches",
            expected=f"at least {len(packed)}, because of the budget of {budget} tokens, and at most {len(lengths)}, "
            "the number of sequences of this rank",
            found=f"{count}, the largest number of all ranks, rounded up for the virtual pipeline",
            fix="raise the *_max_token_len_per_gpu of this worker, or give each rank more sequences",
            override="VERL_NPU_TOKEN_BUDGET=0",
        )


def _decreasing(weights: Sequence[int]) -> list[int]:
    return sorted(range(len(weights)), key=weights.__getitem__, reverse=True)


def _dealt(lengths: Sequence[int], budget: int, count: int, weights: Sequence[int]) -> Bins | None:
    """Give each sequence, heaviest first, to the lightest bin that has room; none if one finds no room."""
    bins: Bins = [[] for _ in range(count)]
    rooms = [budget] * count
    # The number of sequences decides among equals: sequences without weight must not leave a bin empty.
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


def _evened(bins: Bins, lengths: Sequence[int], budget: int, count: int, weights: Sequence[int]) -> Bins:
    """Fill up to `count` bins, and move sequences from the heaviest bin to the lightest as long as that evens them."""
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
"""Added to the length of a sequence that is too long, in place of a number of micro-batches: above any of those."""


Batch: TypeAlias = "Mapping[str, torch.Tensor]"
"""A batch of upstream: a TensorDict."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Sequences to split, by their lengths in tokens; or groups of `together` sequences, which stay together."""

    lengths: Sequence[int]
    together: int
    budget: int
    longest: int
    """The length that upstream compares with the budget: of padded sequences it is their width, padding included."""
    packed: Bins
    """Bins within the budget; none if a sequence alone is too long."""

    @classmethod
    def of(cls, batch: Batch, budget: int, together: int) -> Demand | None:
        """Return what is asked for; none if there is nothing to split, or nothing that upstream would split."""
        lengths, width = _lengths(batch)
        if not lengths or len(lengths) % together:
            return None
        grouped = [sum(lengths[first : first + together]) for first in range(0, len(lengths), together)]
        longest = max(width, *grouped)
        return cls(grouped, together, budget, longest, pack(grouped, budget) if longest <= budget else [])

    @property
    def fits(self) -> bool:
        """Whether each sequence alone is within the budget."""
        return self.longest <= self.budget

    @property
    def least(self) -> int:
        """The least number of micro-batches; a mark for all ranks if a sequence is too long."""
        return len(self.packed) if self.fits else _MARK + self.longest

    @property
    def allowed(self) -> int:
        """The budget that upstream is told, with which it gets as far as agreeing with the other ranks."""
        return max(self.budget, self.longest)

    def check_agreed(self, agreed: int, rounded: int) -> None:
        """Raise MicroBatchError if a rank has a sequence that is too long, or this one too few sequences."""
        if agreed > _MARK:
            raise self._too_long(agreed - _MARK)
        check_count(rounded, self.packed, self.lengths, self.budget)

    def split(self, count: int, weights: Sequence[int]) -> Bins:
        """Return `count` bins within the budget. Raises MicroBatchError as `check_agreed` does."""
        if not self.fits:
            raise self._too_long(self.longest)
        if len(weights) != len(self.lengths):
            raise self._unknown(f"a partition of {len(weights)} sequences or groups instead of {len(self.lengths)}")
        return spread(self.packed, self.lengths, self.budget, count, weights)

    def check_result(self, indices: Bins) -> None:
        """Raise MicroBatchError if a micro-batch of upstream's exceeds the budget after all."""
        # Sequences that stay together do so in the result as well: each of them stands for its share.
        most = max(sum(self.lengths[index // self.together] for index in one[:: self.together]) for one in indices)
        if most > self.budget:
            raise self._unknown(f"one of {most}")

    def _too_long(self, length: int) -> MicroBatchError:
        kind = "a sequence" if self.together == 1 else f"{self.together} sequences that must stay together"
        found = f"{kind} of {length} tokens, padding included" if not self.fits else ""
        return MicroBatchError(
            subject=f"micro-batches of at most {self.budget} tokens",
            expected="each sequence alone to fit",
            found=found or f"a sequence of {length} tokens on another rank",
            fix="raise the *_max_token_len_per_gpu of this worker (the budget is that, times the size of its sequence "
            "parallelism), or lower data.max_prompt_length or data.max_response_length",
        )

    def _unknown(self, found: str) -> MicroBatchError:
        return MicroBatchError(
            subject="verl.utils.seqlen_balancing:rearrange_micro_batches",
            expected=f"micro-batches of at most {self.budget} tokens",
            found=found,
            fix="this verl splits batches in another way than those that verl-npu knows: report it",
            override="VERL_NPU_TOKEN_BUDGET=0",
        )


def _lengths(batch: Batch) -> tuple[list[int], int]:
    """Return the length of each sequence, and the one that upstream compares with the budget."""
    sequences = batch["input_ids"] if "input_ids" in batch.keys() else None  # noqa: SIM118  # a TensorDict is no dict
    if sequences is not None and sequences.is_nested:
        nested: list[int] = sequences.offsets().diff().tolist()
        return nested, max(nested, default=0)
    mask = batch["attention_mask"]
    return mask.sum(dim=1).long().tolist(), mask.shape[-1]
