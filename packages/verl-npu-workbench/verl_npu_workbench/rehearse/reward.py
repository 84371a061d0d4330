"""The reward of the generated questions, as verl's custom_reward_function has it; verl loads this file by its path."""

from __future__ import annotations

import zlib

LARGEST_SUM = 18


def grade(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object = None, **more: object
) -> dict[str, float]:
    """Grade from 0 to 1: 0.74 for the share of digits, 0.25 for two leading digits close to the sum, 0.01 by its text.

    Graded, because a random model never gives a right answer: right or wrong would teach it nothing. `acc` is what
    filters of groups look at: they throw a group away in which all got the same, so that a trainer that counts
    generations ends before its steps are done. Two texts hardly ever get the same.
    """
    score = 0.0
    if solution_str:
        score = 0.01 * zlib.crc32(solution_str.encode(errors="replace")) / 2**32
        score += 0.74 * sum(char in "0123456789" for char in solution_str) / len(solution_str)
        head = solution_str[:2]
        if len(head) == 2 and all(char in "0123456789" for char in head):
            score += 0.25 * (1 - min(1.0, abs(int(head) - int(ground_truth)) / LARGEST_SUM))
    return {"score": score, "acc": score}
