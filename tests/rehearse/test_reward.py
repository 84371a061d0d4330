from __future__ import annotations

from pathlib import Path

import pytest

from verl_npu.rehearse import reward
from verl_npu.rehearse.reward import grade


@pytest.mark.parametrize(
    ("answer", "score"),
    [("07", 0.99), ("", 0.0), ("no", 0.0), ("0x", 0.37), ("25", 0.74), ("07xx", 0.62), ("\u0660\u0667", 0.0)],
)
def test_grades(answer: str, score: float) -> None:
    found = grade("x", answer, "07")
    assert found["score"] == found["acc"] == pytest.approx(score + 0.005, abs=0.005)


def test_answers_that_are_equally_good_are_told_apart() -> None:
    answers = ["no", "on", "xy", "\ud800"]
    assert len({grade("x", answer, "07")["acc"] for answer in answers}) == len(answers)


def test_more_arguments_are_taken() -> None:
    assert grade("x", "07", "07", extra_info={}, reward_router_address="y")["score"] > 0.9


def test_the_file_needs_no_package_of_ours() -> None:
    """It is copied, and loaded by its path."""
    assert "verl_npu" not in Path(reward.__file__).read_text()
