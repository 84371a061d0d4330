from __future__ import annotations

from pathlib import Path

import pytest

from verl_npu.rehearse import reward
from verl_npu.rehearse.reward import grade


@pytest.mark.parametrize(
    ("answer", "score"),
    [("07", 1.0), ("", 0.0), ("no", 0.0), ("0x", 0.375), ("25", 0.75), ("07xx", 0.625), ("\u0660\u0667", 0.0)],
)
def test_grades(answer: str, score: float) -> None:
    assert grade("x", answer, "07") == {"score": score, "acc": score}


def test_more_arguments_are_taken() -> None:
    assert grade("x", "07", "07", extra_info={}, reward_router_address="y")["score"] == 1.0


def test_the_file_needs_no_package_of_ours() -> None:
    """It is copied, and loaded by its path."""
    assert "verl_npu" not in Path(reward.__file__).read_text()
