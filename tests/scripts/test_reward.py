from __future__ import annotations

import pytest
from harness.reward import grade


def score(answer: str, truth: str = "07") -> float:
    return grade("verl-npu/sums", answer, truth)


def test_right_answer_in_digits_is_the_best() -> None:
    assert score("0712345") > 0.99 > score("0812345")


@pytest.mark.parametrize("answer", ["", "no idea", "١٢٣"])
def test_next_to_nothing_for_no_digits(answer: str) -> None:
    assert 0 <= score(answer) < 0.01


def test_every_step_on_the_way_is_worth_more() -> None:
    way = ["no idea", "no idea 3", "9x", "99", "12", "08", "07"]
    assert [score(answer) for answer in way] == sorted(score(answer) for answer in way)
    assert score("99") < score("12") < score("08") < score("07")
