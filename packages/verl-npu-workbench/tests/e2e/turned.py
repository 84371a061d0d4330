"""A reward that no text decides: the answers of a prompt differ in it, and none of its groups is left out."""

from __future__ import annotations

import itertools

_SCORES = itertools.cycle((0.0, 1.0, 1.0))


def grade(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object = None, **more: object
) -> dict[str, float]:
    """Grade by turns, in verl's form of a custom_reward_function."""
    score = next(_SCORES)
    return {"score": score, "acc": score}
