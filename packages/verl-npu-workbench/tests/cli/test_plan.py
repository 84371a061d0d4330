"""`verl-npu plan`: options that exclude each other. What it finds is shown by tests/e2e/test_plan.py."""

from __future__ import annotations

import pytest

from .conftest import Run


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--lengths", "lengths.csv", "--response-length", "5"), "--lengths takes the place of --prompt-length,"),
        (("--lengths", "lengths.csv", "--spread", "0.5"), "--lengths takes the place of --prompt-length,"),
        (("--spread", "0.5"), "--spread is around a mean: give it as --response-length"),
    ],
)
def test_lengths_are_given_in_one_way(run: Run, options: tuple[str, ...], said: str) -> None:
    status, output = run("plan", *options, "--", "python3", "-m", "verl.trainer.main_ppo")
    assert status == 2
    assert said in " ".join(output.split())
