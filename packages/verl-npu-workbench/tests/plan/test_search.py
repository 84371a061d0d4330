from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from verl_npu_workbench.plan import search as searching
from verl_npu_workbench.plan.hardware import HARDWARE
from verl_npu_workbench.plan.planning import Planned, Request
from verl_npu_workbench.plan.search import Largest, largest_micro_batch, make_fit
from verl_npu_workbench.plan.verdict import Fit, judge

ACTOR = "actor_rollout_ref.actor."
KEY = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
BUDGET = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
Answer = Callable[[dict[str, object]], Planned]
Search = Callable[..., tuple[Largest, list[object]]]


@pytest.fixture
def answers(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Callable[[dict[str, object]], Planned]], list[dict[str, object]]]:
    """Return a function that replaces planning by a function of the changes, and returns the list of requests."""

    def put(answer: Answer) -> list[dict[str, object]]:
        asked: list[dict[str, object]] = []

        def plan(trainer: object, tree: object, request: Request) -> Planned:
            asked.append(dict(request.changes))
            return answer(asked[-1])

        monkeypatch.setattr("verl_npu_workbench.plan.search.plan", plan)
        return asked

    return put


@pytest.fixture
def request_of_a_user(tmp_path: Path) -> Request:
    return Request(tmp_path, HARDWARE["a2"])


@pytest.fixture
def search(planned, tuned, answers, request_of_a_user: Request) -> Search:
    """Return a function that searches where each unit of a setting adds so many GiB; it also lists the plans."""

    def run(key: str, each: float, phase: str = "update actor", **others: object) -> tuple[Largest, list[object]]:
        make = planned if phase == "update actor" else tuned
        asked = answers(lambda changes: make({phase: 10 + each * changes[key]}, **{**others, **changes}))
        first = make({phase: 10.0}, **others)
        assert key in first.settings
        found = largest_micro_batch(first.trainer, Path(), request_of_a_user, first)
        return found, [changes[key] for changes in asked]

    return run


def test_the_largest_part_of_a_mini_batch_that_fits_is_found(search: Search) -> None:
    # A mini batch has 16 sequences; 8 need 10 + 32 GiB, 16 would need 74.
    found, asked = search(KEY, 4.0)
    assert (found.key, found.size, found.exact) == (KEY, 8, True)
    assert sorted(asked) == sorted(set(asked)) == [each.size for each in found.probes]
    assert 16 in asked


def test_all_of_a_mini_batch_may_fit(search: Search) -> None:
    found, _ = search(KEY, 1.0)
    assert (found.size, found.exact) == (16, True)


def test_no_size_may_fit(search: Search) -> None:
    found, _ = search(KEY, 60.0)
    assert (found.size, found.exact) == (0, True)
    assert not any(each.fits for each in found.probes)


def test_only_sizes_of_which_verl_can_make_a_mini_batch_are_planned(search: Search) -> None:
    found, asked = search(KEY, 5.0, **{f"{ACTOR}ppo_mini_batch_size": 24})
    assert all(12 % int(str(each)) == 0 for each in asked)
    assert found.size == 6


def test_a_token_budget_is_found_in_whole_sequences(search: Search) -> None:
    # 11 sequences of 4096 tokens take 44 GiB beside the 10; with the reserve 12 would be too many.
    found, _ = search(BUDGET, 1 / 1024, **{f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ppo_max_token_len_per_gpu": 8192})
    assert (found.key, found.size, found.exact) == (BUDGET, 11 * 4096, True)


def test_another_phase_that_does_not_fit_says_nothing_of_the_update(planned, answers, request_of_a_user) -> None:
    first = planned({"load": 90.0, "update actor": 10.0})
    answers(lambda changes: first)
    assert largest_micro_batch(first.trainer, Path(), request_of_a_user, first).size == 16


@pytest.mark.parametrize(
    ("engines", "key", "each", "size"),
    [(False, "data.micro_batch_size_per_gpu", 4.0, 8), (True, "data.max_token_len_per_gpu", 1e-3, 45056)],
)
def test_it_is_found_for_fine_tuning(search: Search, engines: bool, key: str, each: float, size: int) -> None:
    found, _ = search(key, each, phase="training step", engines=engines)
    assert (found.key, found.size, found.exact) == (key, size, True)


@pytest.fixture
def tried(planned, answers, request_of_a_user):
    """Return a function that runs the search, given the first plan's peaks and a function of the changes."""

    def run(peaks: dict[str, float], answer, **given: object) -> tuple[searching.Search, list[dict[str, object]]]:
        asked = answers(answer)
        first = planned(peaks, **given)
        return make_fit(first.trainer, Path(), request_of_a_user, first, judge(first)), asked

    return run


def test_a_knob_is_planned_before_it_is_proposed(planned, tried) -> None:
    def answer(changes: dict[str, object]) -> Planned:
        return planned({"update actor": 30 + 18.0 * changes[KEY]}, **changes)

    found, asked = tried({"update actor": 102.0}, answer)
    assert asked == [{KEY: 2}, {KEY: 1}]
    assert [each.verdict.fit for each in found.tries] == [Fit.DOES_NOT, Fit.FITS]


def test_a_knob_that_does_not_help_is_turned_back(planned, tried) -> None:
    offload = "actor_rollout_ref.actor.fsdp_config.optimizer_offload"
    found, asked = tried(
        {"log-probabilities": 100.0},
        lambda changes: planned({"log-probabilities": 40.0 if offload in changes else 100.0}),
    )
    assert len(asked) > 1
    assert found.tries[-1].verdict.fit is Fit.FITS
    assert found.proposal == {offload: True}


def test_what_does_not_fit_with_anything_ends(planned, tried) -> None:
    found, _ = tried({"load": 500.0}, lambda changes: planned({"load": 500.0}))
    assert found.tries
    assert not found.proposal
    assert all(each.verdict.fit is Fit.DOES_NOT for each in found.tries)


def test_a_failed_try_is_turned_back(planned, tried) -> None:
    done = planned({"update actor": 1.0})
    failed = dataclasses.replace(done.outcomes[0], error="AssertionError", failed_in="load")
    found, asked = tried({"update actor": 100.0}, lambda changes: dataclasses.replace(done, outcomes=(failed,)))
    assert {each.verdict.fit for each in found.tries} == {Fit.FAILED}
    assert all(len(changes) <= 2 for changes in asked), "none is kept"


NODES = "trainer.nnodes"


def test_more_npus_end_when_they_leave_as_it_is_what_alone_is_too_much(planned, tried) -> None:
    def answer(changes: dict[str, object]) -> Planned:
        return planned({"update actor": 80.0}, state=70.0, whole=65.0, **changes)

    found, asked = tried({"update actor": 80.0}, answer, state=75.0, whole=65.0)
    assert [NODES in changes for changes in asked] == [True], "once, and no more"
    assert "gradients 65.0 GiB" in found.cause
    assert "Each NPU holds all gradients" in found.cause
    assert not found.proposal


def test_more_npus_go_on_where_they_divide_what_is_too_much(planned, tried) -> None:
    def answer(changes: dict[str, object]) -> Planned:
        state = 260.0 / int(str(changes[NODES]))
        return planned({"update actor": state + 10.0}, state=state, **changes)

    found, asked = tried({"update actor": 270.0}, answer, state=260.0)
    assert found.proposal[NODES] == asked[-1][NODES] == 8
    assert not found.cause


def test_more_npus_than_anyone_would_take_are_not_planned(planned, tried) -> None:
    found, asked = tried({"update actor": 610.0}, lambda changes: planned({}), state=600.0)
    assert not asked
    assert "the models' state needs 128 NPUs, and plans propose at most 64" in found.cause
