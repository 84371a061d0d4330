"""A reward that does not depend on the text: the answers of a prompt differ in it, so that no group is left out."""

from __future__ import annotations

import itertools

_SCORES = itertools.cycle((0.0, 1.0, 1.0))


def grade(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object = None, **more: object
) -> dict[str, float]:
    """Return grades in turn, in the form of verl's custom_reward_function."""
    score = next(_SCORES)
    return {"score": score, "acc": score}
