"""The figures, beside those of scipy and of counting."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from verl_npu_workbench.evaluation.record import Entry
from verl_npu_workbench.evaluation.report import difference, figures, pass_at

scipy_stats = pytest.importorskip("scipy.stats")


def entry(row: int, number: int, score: float, **more: object) -> Entry:
    return Entry(row, number, "sums", score, more, "stop", 5, "4")


def entries(scores: list[list[float]]) -> list[Entry]:
    """Return answers, a list for each row."""
    return [entry(row, number, each) for row, line in enumerate(scores) for number, each in enumerate(line)]


def test_the_mean_its_rounds_and_their_spread() -> None:
    found = figures(entries([[0, 1], [1, 1], [0, 0], [1, 0]]), 1.0)
    assert (found.mean, found.rounds, found.prompts, found.answers) == (0.5, (0.5, 0.5), 4, 8)
    assert found.spread == 0


def test_the_intervals_are_scipys() -> None:
    numbers = random.Random(0)
    scores = [[numbers.random() for _ in range(6)] for _ in range(9)]
    found = figures(entries(scores), 1.0)
    over_prompts = scipy_stats.ttest_1samp([statistics.mean(line) for line in scores], 0).confidence_interval(0.95)
    over_rounds = scipy_stats.ttest_1samp(found.rounds, 0).confidence_interval(0.95)
    assert found.over_prompts is not None
    assert found.over_rounds is not None
    assert (found.over_prompts.low, found.over_prompts.high) == pytest.approx(tuple(over_prompts))
    assert (found.over_rounds.low, found.over_rounds.high) == pytest.approx(tuple(over_rounds))


def test_the_interval_over_prompts_holds_the_truth_in_95_of_100_experiments() -> None:
    numbers, held = random.Random(1), 0
    for _ in range(400):
        chances = [numbers.random() for _ in range(30)]
        found = figures(entries([[float(numbers.random() < each) for _ in range(4)] for each in chances]), 1.0)
        assert found.over_prompts is not None
        held += found.over_prompts.low <= 0.5 <= found.over_prompts.high
    assert 0.92 <= held / 400 <= 0.98


def test_one_round_and_one_prompt_have_no_interval() -> None:
    found = figures(entries([[0.5]]), 1.0)
    assert (found.over_prompts, found.over_rounds, found.spread) == (None, None, None)


@pytest.mark.parametrize(("answers", "correct"), [(5, 0), (5, 1), (5, 2), (5, 5), (16, 3)])
def test_pass_at_k_is_the_share_of_all_draws_that_have_a_correct_answer(answers: int, correct: int) -> None:
    worth = [True] * correct + [False] * (answers - correct)
    for k in range(1, answers + 1):
        draws = [any(draw) for draw in itertools.combinations(worth, k)]
        assert math.isclose(pass_at(k, answers, correct), sum(draws) / len(draws), abs_tol=1e-12)


def test_pass_at_k_is_shown_for_powers_of_two_and_for_all_answers() -> None:
    found = figures(entries([[0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]]), 1.0).pass_at
    assert list(found) == [1, 2, 4, 6]
    assert found[1] == pytest.approx(1 / 12)
    assert found[6] == 0.5


def test_what_is_correct_is_acc_where_there_is_one_and_the_score_otherwise() -> None:
    by_acc = [entry(0, 0, 0.0, acc=True), entry(0, 1, 9.0, acc=False)]
    assert figures(by_acc, 1.0).pass_at[1] == 0.5
    assert figures(entries([[0.6, 0.4]]), 0.5).pass_at[1] == 0.5


def test_the_share_of_answers_that_were_cut() -> None:
    cut = Entry(0, 0, "sums", 0.0, {}, "length", 16, "")
    assert figures([cut, entry(0, 1, 1.0)], 1.0).cut == 0.5


def test_a_difference_is_taken_prompt_by_prompt() -> None:
    # Prompts differ far more than the two models do.
    before = [[row / 10, row / 10] for row in range(10)]
    after = [[each + 0.05 + 0.001 * row for each in line] for row, line in enumerate(before)]
    found = difference(entries(after), entries(before))
    assert found.verdict == "higher"
    assert found.mean == pytest.approx(0.0545)
    assert difference(entries(before), entries(after)).verdict == "lower"
    assert difference(entries(before), entries(before)).verdict == "not told apart"


def test_a_difference_is_over_the_prompts_that_both_have() -> None:
    assert difference(entries([[1.0], [0.0], [5.0]]), entries([[0.0], [0.0]])).prompts == 2
