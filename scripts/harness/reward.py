"""The reward of the generated sums, in the form of verl's custom_reward_function. verl loads this file by its path."""

from __future__ import annotations

LARGEST_SUM = 18


def grade(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object = None, **others: object
) -> float:
    """Grade from 0 to 1: three quarters for the share of digits, one for two leading digits close to the sum.

    Graded, because a random model never gives a right answer: right or wrong would teach it nothing.
    """
    if not solution_str:
        return 0.0
    digits = sum(char in "0123456789" for char in solution_str) / len(solution_str)
    head = solution_str[:2]
    close = 0.0
    if len(head) == 2 and all(char in "0123456789" for char in head):
        close = 1 - min(1.0, abs(int(head) - int(ground_truth)) / LARGEST_SUM)
    return 0.75 * digits + 0.25 * close
