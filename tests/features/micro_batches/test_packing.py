"""Bins of sequences stay within the budget, are few, hold every sequence, and are even."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from verl_npu.errors import JobSettingError
from verl_npu.features.micro_batches.packing import Bins, pack, spread

from .mixes import MIXES, first_fit_decreasing, work

BUDGET = 100
LENGTHS = st.lists(st.integers(0, BUDGET), min_size=1, max_size=60)
CHANCE = 20


def partition(
    lengths: list[int], budget: int, *, least: int = 1, divisor: int = 1, weights: list[int] | None = None
) -> Bins:
    packed = pack(lengths, budget)
    count = -(-max(least, len(packed)) // divisor) * divisor
    return spread(packed, lengths, budget, count, lengths if weights is None else weights)


def fullest(bins: Bins, lengths: list[int]) -> int:
    return max(sum(lengths[index] for index in one) for one in bins)


@given(LENGTHS, st.integers(1, 12), st.integers(1, 4), st.booleans())
@example([0, 0, 0], 3, 1, False)
@example([BUDGET], 1, 1, True)
def test_no_bin_is_over_the_budget_or_empty_and_each_sequence_is_in_one(
    lengths: list[int], least: int, divisor: int, by_work: bool
) -> None:
    needed = max(least, first_fit_decreasing(lengths, BUDGET))
    count = -(-needed // divisor) * divisor
    weights = work(lengths) if by_work else None
    if count > len(lengths):
        with pytest.raises(JobSettingError, match=f"found {count} micro-batches"):
            partition(lengths, BUDGET, least=least, divisor=divisor, weights=weights)
        return
    bins = partition(lengths, BUDGET, least=least, divisor=divisor, weights=weights)
    assert len(bins) == count
    assert all(bins)
    assert sorted(index for one in bins for index in one) == list(range(len(lengths)))
    assert fullest(bins, lengths) <= BUDGET


@given(st.lists(st.integers(0, 2 * BUDGET), min_size=1, max_size=30).filter(lambda lengths: max(lengths) > BUDGET))
def test_a_sequence_that_alone_is_too_long_is_an_error_with_its_length(lengths: list[int]) -> None:
    with pytest.raises(JobSettingError, match=f"at most {BUDGET} tokens.*found a sequence of {max(lengths)} tokens"):
        partition(lengths, BUDGET)


@given(LENGTHS)
def test_indices_stand_in_order_in_each_bin(lengths: list[int]) -> None:
    assert all(one == sorted(one) for one in partition(lengths, BUDGET))


@given(st.lists(st.integers(1, BUDGET), min_size=8, max_size=60), st.integers(1, 8))
def test_if_there_is_room_no_two_bins_differ_by_more_than_the_heaviest_sequence(
    lengths: list[int], count: int
) -> None:
    weights = work(lengths)
    loads = [
        sum(weights[index] for index in one) for one in partition(lengths, sum(lengths), least=count, weights=weights)
    ]
    assert max(loads) - min(loads) <= max(weights)


def test_the_bins_of_first_fit_are_taken_if_dealing_evenly_exceeds_the_budget() -> None:
    # Dealt out in turn, the bins would hold 90 when the last 30 comes.
    lengths = [60, 50, 50, 40, 40, 30, 30]
    bins = partition(lengths, BUDGET)
    assert [sum(lengths[index] for index in one) for one in bins] == [BUDGET] * 3


def test_the_bins_of_first_fit_are_evened() -> None:
    lengths = [15, 5, 40, 30, 35, 30, 35, 40, 45]  # first-fit-decreasing makes bins of 80, 95 and 100
    assert sorted(sum(lengths[index] for index in one) for one in partition(lengths, BUDGET)) == [90, 90, 95]


@pytest.mark.parametrize("weighted", [False, True], ids=["by length", "by work"])
@pytest.mark.parametrize("mix", MIXES)
def test_there_are_no_more_bins_than_first_fit_decreasing_makes(mix: str, weighted: bool) -> None:
    draw, budget = MIXES[mix]
    chance = random.Random(1)
    for _ in range(CHANCE):
        lengths = draw(chance)
        bins = partition(lengths, budget, weights=work(lengths) if weighted else None)
        assert len(bins) == first_fit_decreasing(lengths, budget)
        assert fullest(bins, lengths) <= budget
