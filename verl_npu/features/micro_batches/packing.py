"""Sequences are packed into bins that never hold more tokens than a budget; pure Python, no torch.

The number of bins is that of first-fit-decreasing, or larger if more are asked for. With that number the sequences are
dealt out evenly; only if that exceeds the budget, the bins of first-fit-decreasing are taken and evened out.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ...errors import MicroBatchError

__all__ = ["Bins", "check_count", "pack", "partition", "spread"]

Bins = list[list[int]]
"""The indices of the sequences in each bin."""


def partition(
    lengths: Sequence[int], budget: int, *, least: int = 1, divisor: int = 1, weights: Sequence[int] | None = None
) -> Bins:
    """Return bins of sequences: none empty, none with more than `budget` tokens, even in their sums of `weights`.

    `lengths` are in tokens, `weights` in any unit of work (default: the lengths). The number of bins is at least
    `least` and a multiple of `divisor`. Raises MicroBatchError if a sequence alone is too long, or if there are fewer
    sequences than bins.
    """
    packed = pack(lengths, budget)
    count = -(-max(least, len(packed)) // divisor) * divisor
    return spread(packed, lengths, budget, count, lengths if weights is None else weights)


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
