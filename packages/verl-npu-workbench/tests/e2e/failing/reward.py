"""A reward function with a user's mistake in it."""


def grade(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, str]) -> float:
    return float(extra_info["solution"] == solution_str)
