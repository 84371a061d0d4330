from __future__ import annotations

import pytest
from verl_npu_workbench.logs.clocks import Clocks, seconds


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("2025-06-25-10:45:23", "2025-06-25 10:45:20,500", 2.5),
        ("[2025-04-02 15:02:01,117 E 135782]", "INFO:2025-04-02 15:02:00,117:[Rank 1]", 1.0),
        ("2025-04-08-18:07:20.444.436 Getting", "2025-04-08T18:07:20Z", 0.444436),
    ],
)
def test_times_are_read_as_they_are_written(one: str, other: str, apart: float) -> None:
    first, second = seconds(one), seconds(other)
    assert first is not None
    assert second is not None
    assert first - second == pytest.approx(apart)


@pytest.mark.parametrize("text", ["step:1 - a:1", "2025-13-45 10:45:23", "", "x 2025-06-25 10:45:23"])
def test_what_is_no_time_is_none(text: str) -> None:
    assert seconds(text) is None


def noted(ahead: int) -> Clocks:
    clocks = Clocks()
    for second in range(10, 50, 4):
        clocks.note("", "1", f"2026-01-01 10:00:{second}")
        clocks.note("10.0.0.2", "7", f"2026-01-01 10:{ahead // 60:02}:{second + 1 + ahead % 60}")
    return clocks


def test_a_clock_that_is_ahead_is_seen() -> None:
    assert noted(300).ahead("10.0.0.2") == pytest.approx(300, abs=4)
    assert noted(300).hosts == {"7": "10.0.0.2"}


def test_clocks_that_agree_are_left_alone() -> None:
    assert noted(0).ahead("10.0.0.2") == 0.0
    assert Clocks().ahead("10.0.0.9") == 0.0
