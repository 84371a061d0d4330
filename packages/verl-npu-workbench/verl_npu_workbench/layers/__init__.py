"""Finds the first layer and operator at which a trainer and a rollout engine compute different values.

`recording` records what the parts of a model compute. `reference` computes the same parts on the host, from each
side's own inputs. `judging` compares the two, and `causes` looks for the reason of a difference.
"""

ASK, ANSWERS, RESULT = "ask.json", "answers.json", "comparison.json"
"""The files with which the programs of a comparison pass on their results, in one folder."""
