"""The reward of the generated questions, as verl's custom_reward_function has it; verl loads this file by its path."""

from __future__ import annotations

LARGEST_SUM = 18


def grade(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object = None, **more: object
) -> dict[str, float]:
    """Grade from 0 to 1: three quarters for the share of digits, one for two leading digits close to the sum.

    Graded, because a random model never gives a right answer: right or wrong would teach it nothing. `acc` is what
    filters of groups look at.
    """
    score = 0.0
    if solution_str:
        score = 0.75 * sum(char in "0123456789" for char in solution_str) / len(solution_str)
        head = solution_str[:2]
        if len(head) == 2 and all(char in "0123456789" for char in head):
            score += 0.25 * (1 - min(1.0, abs(int(head) - int(ground_truth)) / LARGEST_SUM))
    return {"score": score, "acc": score}
