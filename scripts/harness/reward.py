"""The reward for the generated sums, as verl's custom_reward_function. verl loads this file by its path."""

from __future__ import annotations

from verl_npu_workbench.rehearse import reward


def grade(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object = None, **others: object
) -> float:
    """Return the reward of a rehearsed response, from 0 to 1."""
    return reward.grade(data_source, solution_str, ground_truth)["score"]
