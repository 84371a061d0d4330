"""Upstream's rearrange_micro_batches with our patches, at the installed verl and at the revisions in the folder."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("verl")

from verl_npu.errors import JobSettingError
from verl_npu.features.micro_batches import agree_on_a_number

from .mixes import MIXES, first_fit_decreasing
from .upstream import BOUNDED, REVISIONS, load, nested, padded, patched, tokens

pytestmark = pytest.mark.upstream

BUDGET = 100
# Half of them fit together in twos and not in threes: by tokens alone, fewer micro-batches would be enough.
LENGTHS = [60, 60, 60, 60, 10, 20, 30, 40, 5, 5, 35, 45]


@pytest.fixture(params=REVISIONS)
def revision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("VERL_NPU_TOKEN_BUDGET", "1")
    return str(request.param)


@pytest.fixture
def module(revision: str) -> ModuleType:
    return patched(revision)


@pytest.fixture(params=["padded", "nested"])
def batch(request: pytest.FixtureRequest, revision: str) -> Callable[[list[int]], Any]:
    """Return a function that makes a batch of sequences with these lengths."""
    if request.param == "nested":
        if "is_nested" not in inspect.getsource(load(revision).rearrange_micro_batches):
            pytest.skip("this revision has no nested batches")
        return nested
    return padded


def test_no_micro_batch_exceeds_the_budget(module: ModuleType, batch: Callable[[list[int]], Any]) -> None:
    split, indices = module.rearrange_micro_batches(batch(LENGTHS), max_token_len=BUDGET)
    assert max(map(tokens, split)) <= BUDGET
    assert len(split) == first_fit_decreasing(LENGTHS, BUDGET)
    assert sorted(index for one in indices for index in one) == list(range(len(LENGTHS)))


def test_each_micro_batch_holds_the_sequences_that_its_indices_name(
    module: ModuleType, batch: Callable[[list[int]], Any]
) -> None:
    split, indices = module.rearrange_micro_batches(batch(LENGTHS), max_token_len=BUDGET)
    held = [[int(sequence[0]) for sequence in one["input_ids"].unbind()] for one in split]
    assert held == indices


def over_budget(revision: str) -> int:
    """Return how many of six batches upstream alone splits so that a micro-batch exceeds the budget."""
    draw, budget = MIXES["bimodal"]
    chance = random.Random(0)
    over = 0
    for _ in range(6):
        # A hundredth of each length: upstream's own partition is as bad, and the batches are small.
        lengths = [length // 100 for length in draw(chance)]
        split, _ = load(revision).rearrange_micro_batches(padded(lengths), max_token_len=budget // 100)
        over += max(map(tokens, split)) > budget // 100
    return over


def test_without_us_upstream_exceeds_the_budget(revision: str) -> None:
    assert over_budget(revision)


@pytest.mark.parametrize("bounded", BOUNDED)
def test_where_our_patches_are_not_put_in_upstream_keeps_the_budget(bounded: str) -> None:
    assert not over_budget(bounded)


@pytest.mark.parametrize("switch", ["0", None], ids=["off", "not set"])
def test_who_does_not_ask_for_it_gets_upstreams_micro_batches(
    revision: str, module: ModuleType, switch: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VERL_NPU_TOKEN_BUDGET")
    if switch is not None:
        monkeypatch.setenv("VERL_NPU_TOKEN_BUDGET", switch)
    (_, ours), (_, upstreams) = (
        each.rearrange_micro_batches(padded(LENGTHS), max_token_len=BUDGET) for each in (module, load(revision))
    )
    assert ours == upstreams


def test_other_callers_of_the_partition_get_upstreams(revision: str, module: ModuleType) -> None:
    ours, upstreams = (
        each.get_seqlen_balanced_partitions(LENGTHS, k_partitions=4, equal_size=True)
        for each in (module, load(revision))
    )
    assert ours == upstreams


@pytest.mark.parametrize(("divisor", "count"), [(1, 5), (2, 6), (4, 8)])
def test_the_virtual_pipelines_divisor_is_kept(module: ModuleType, divisor: int, count: int) -> None:
    split, _ = module.rearrange_micro_batches(padded(LENGTHS), BUDGET, num_batches_divided_by=divisor)
    assert len(split) == count
    assert max(map(tokens, split)) <= BUDGET


def test_a_least_number_of_micro_batches_is_kept(module: ModuleType) -> None:
    split, _ = module.rearrange_micro_batches(padded(LENGTHS), max_token_len=BUDGET, min_num_micro_batch=7)
    assert len(split) == 7


def test_the_order_is_upstreams(revision: str, module: ModuleType) -> None:
    _, indices = module.rearrange_micro_batches(padded(LENGTHS), max_token_len=BUDGET)
    work = [sum(24576 * LENGTHS[index] + LENGTHS[index] ** 2 for index in one) for one in indices]
    squares = [sum(LENGTHS[index] ** 2 for index in one) for one in indices]
    if "[::2][::-1]" in inspect.getsource(load(revision).rearrange_micro_batches):
        assert work.index(max(work)) == (len(work) - 1) // 2  # the smaller ones are at both ends
    else:
        assert squares == sorted(squares, reverse=True)


def test_a_sequence_that_alone_is_too_long_is_named_with_the_budget(
    module: ModuleType, batch: Callable[[list[int]], Any]
) -> None:
    with pytest.raises(JobSettingError, match=r"at most 100 tokens.*a sequence of 101 tokens.*max_token_len_per_gpu"):
        module.rearrange_micro_batches(batch([*LENGTHS, BUDGET + 1]), max_token_len=BUDGET)


def test_fewer_sequences_than_micro_batches_are_an_error_that_says_why(module: ModuleType) -> None:
    words = r"at least 5 micro-batches, because .*100 tokens, and at most 6, .*; found 8 micro-batches "
    with pytest.raises(JobSettingError, match=words):
        module.rearrange_micro_batches(padded([60] * 5 + [10]), max_token_len=BUDGET, num_batches_divided_by=4)


def test_after_an_error_the_partition_is_upstreams_again(revision: str, module: ModuleType) -> None:
    with pytest.raises(JobSettingError):
        module.rearrange_micro_batches(padded([BUDGET + 1]), max_token_len=BUDGET)
    test_other_callers_of_the_partition_get_upstreams(revision, module)


def test_sequences_that_must_stay_together_do(revision: str, module: ModuleType) -> None:
    if "force_group_size" not in inspect.signature(load(revision).rearrange_micro_batches).parameters:
        pytest.skip("this revision does not keep sequences together")
    lengths = [30, 25, 40, 5, 50, 10, 20, 20, 60, 30, 15, 15]
    split, indices = module.rearrange_micro_batches(padded(lengths), max_token_len=BUDGET, force_group_size=2)
    assert max(map(tokens, split)) <= BUDGET
    assert all(one[1::2] == [index + 1 for index in one[::2]] for one in indices)
    with pytest.raises(JobSettingError, match="2 sequences that must stay together of 120 tokens"):
        module.rearrange_micro_batches(padded([60, 60, 10, 10]), max_token_len=BUDGET, force_group_size=2)


def test_an_upstream_that_no_longer_asks_for_the_partition_is_told_apart(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pretend that upstream has a partition of its own that we do not know.
    monkeypatch.setattr(module, "get_seqlen_balanced_partitions", lambda *_, **__: [[0, 1], [2], [3]])
    with pytest.raises(
        JobSettingError, match="expected micro-batches of at most 100 tokens; found a micro-batch of 110 tokens"
    ):
        module.rearrange_micro_batches(padded([60, 50, 50, 50]), max_token_len=BUDGET)


def test_outside_of_a_split_what_is_patched_can_be_compiled_whole() -> None:
    torch = pytest.importorskip("torch")

    def scaled(values: Any, number: int) -> Any:
        return values * agree_on_a_number(lambda a, b: -(-a // b) * b, number, 4)

    compiled = torch.compile(scaled, fullgraph=True, backend="eager")
    assert compiled(torch.ones(2), 5).tolist() == [8.0, 8.0]
