"""The reward function for the generated questions. verl loads this file, by its path, as custom_reward_function."""

from __future__ import annotations

import zlib

LARGEST_SUM = 18


def grade(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object = None, **more: object
) -> dict[str, float]:
    """Grade a response from 0 to 1: up to 0.74 for the share of digits, up to 0.25 for two leading digits near
    `ground_truth`, and up to 0.01 from the response's hash.

    Rewards are graded, because a random model never answers correctly and would learn nothing from rewards of 0 and 1.
    Filters that use `acc` drop groups of responses with equal values, and a trainer that counts generations would then
    stop too early. The hash makes it very unlikely that two responses have the same value.
    """
    score = 0.0
    if solution_str:
        score = 0.01 * zlib.crc32(solution_str.encode(errors="replace")) / 2**32
        score += 0.74 * sum(char in "0123456789" for char in solution_str) / len(solution_str)
        head = solution_str[:2]
        if len(head) == 2 and all(char in "0123456789" for char in head):
            score += 0.25 * (1 - min(1.0, abs(int(head) - int(ground_truth)) / LARGEST_SUM))
    return {"score": score, "acc": score}
