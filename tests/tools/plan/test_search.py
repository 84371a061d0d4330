"""The largest micro batch that fits, and settings that make a plan fit: each is planned before it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_npu.tools.plan.hardware import HARDWARE
from verl_npu.tools.plan.planning import Planned, Request
from verl_npu.tools.plan.search import Largest, largest_micro_batch, make_fit
from verl_npu.tools.plan.verdict import Fit, judge

ACTOR = "actor_rollout_ref.actor."
KEY = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
BUDGET = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
Search = Callable[..., tuple[Largest, list[object]]]


@pytest.fixture
def search(planned, tmp_path: Path, monkeypatch) -> Search:
    """Search where the update takes so many GiB for each unit of a setting; also returns what was planned."""

    def run(key: str, each: float, **others: object) -> tuple[Largest, list[object]]:
        asked: list[object] = []

        def plan(trainer, tree, request, told) -> Planned:
            changes = dict(request.changes)
            asked.append(request.changes[-1][1])
            return planned({"update actor": 10 + each * request.changes[-1][1]}, **{**others, **changes})

        monkeypatch.setattr("verl_npu.tools.plan.search.plan", plan)
        first = planned({"update actor": 10.0}, **others)
        assert key in first.settings
        return largest_micro_batch(first.trainer, Path(), Request(tmp_path, HARDWARE["a2"]), first), asked

    return run


def test_the_largest_part_of_a_mini_batch_that_fits_is_found(search: Search) -> None:
    # 16 sequences of a mini batch; 8 need 10 + 32 GiB, 16 would need 74.
    found, asked = search(KEY, 4.0)
    assert (found.key, found.size, found.exact) == (KEY, 8, True)
    assert sorted(asked) == sorted(set(asked)) == [each.size for each in found.probes]
    assert 16 in asked


def test_all_of_a_mini_batch_may_fit(search: Search) -> None:
    found, _ = search(KEY, 1.0)
    assert (found.size, found.exact) == (16, True)


def test_none_may_fit(search: Search) -> None:
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


def test_another_phase_that_does_not_fit_says_nothing_of_the_update(planned, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("verl_npu.tools.plan.search.plan", lambda *_: planned({"load": 90.0, "update actor": 10.0}))
    first = planned({"load": 90.0, "update actor": 10.0})
    found = largest_micro_batch(first.trainer, Path(), Request(tmp_path, HARDWARE["a2"]), first)
    assert found.size == 16


@pytest.mark.parametrize(
    ("engines", "key", "each", "size"),
    [(False, "data.micro_batch_size_per_gpu", 4.0, 8), (True, "data.max_token_len_per_gpu", 1e-3, 45056)],
)
def test_it_is_found_for_fine_tuning(
    tuned, tmp_path: Path, monkeypatch, engines: bool, key: str, each: float, size: int
) -> None:
    def plan(trainer, tree, request, told) -> Planned:
        changes = dict(request.changes)
        return tuned({"training step": 10 + each * request.changes[-1][1]}, engines=engines, **changes)

    monkeypatch.setattr("verl_npu.tools.plan.search.plan", plan)
    first = tuned({"training step": 10.0}, engines=engines)
    found = largest_micro_batch(first.trainer, Path(), Request(tmp_path, HARDWARE["a2"]), first)
    assert (found.key, found.size, found.exact) == (key, size, True)


@pytest.fixture
def request_of_a_user(tmp_path: Path) -> Request:
    return Request(tmp_path, HARDWARE["a2"])


def test_a_knob_is_planned_before_it_is_proposed(planned, request_of_a_user, monkeypatch) -> None:
    asked = []

    def plan(trainer, tree, request, told):
        asked.append(dict(request.changes))
        size = request.changes[-1][1] if request.changes[-1][0].endswith("micro_batch_size_per_gpu") else 4
        return planned(
            {"update actor": 30 + 18.0 * size}, **{"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": size}
        )

    monkeypatch.setattr("verl_npu.tools.plan.search.plan", plan)
    first = planned({"update actor": 102.0})
    tries = make_fit(first.trainer, Path(), request_of_a_user, first, judge(first))
    assert asked == [{KEY: 2}, {KEY: 1}]
    assert [each.verdict.fit for each in tries] == [Fit.DOES_NOT, Fit.FITS]


def test_a_knob_that_does_not_help_is_turned_back(planned, request_of_a_user, monkeypatch) -> None:
    seen = []

    def plan(trainer, tree, request, told):
        seen.append(dict(request.changes))
        offloaded = "actor_rollout_ref.actor.fsdp_config.optimizer_offload" in dict(request.changes)
        return planned({"log-probabilities": 40.0 if offloaded else 100.0})

    monkeypatch.setattr("verl_npu.tools.plan.search.plan", plan)
    first = planned({"log-probabilities": 100.0})
    tries = make_fit(first.trainer, Path(), request_of_a_user, first, judge(first))
    assert tries[-1].verdict.fit is Fit.FITS
    assert dict(tries[-1].changes) == {"actor_rollout_ref.actor.fsdp_config.optimizer_offload": True}


def test_what_does_not_fit_with_anything_ends(planned, request_of_a_user, monkeypatch) -> None:
    monkeypatch.setattr("verl_npu.tools.plan.search.plan", lambda *_: planned({"load": 500.0}))
    first = planned({"load": 500.0})
    tries = make_fit(first.trainer, Path(), request_of_a_user, first, judge(first))
    assert tries
    assert all(each.verdict.fit is Fit.DOES_NOT for each in tries)


def test_a_failed_try_is_turned_back(planned, request_of_a_user, monkeypatch) -> None:
    def plan(trainer, tree, request, told):
        done = planned({"update actor": 1.0})
        failed = dataclasses.replace(done.outcomes[0], error="AssertionError", failed_in="load")
        return dataclasses.replace(done, outcomes=(failed,)) if len(request.changes) == 1 else done

    monkeypatch.setattr("verl_npu.tools.plan.search.plan", plan)
    first = planned({"update actor": 100.0})
    tries = make_fit(first.trainer, Path(), request_of_a_user, first, judge(first))
    assert all(each.verdict.fit is Fit.FAILED for each in tries)
