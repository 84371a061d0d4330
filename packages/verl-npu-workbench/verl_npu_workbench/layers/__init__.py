"""Finds the first layer and operator at which a trainer and a rollout engine compute different values.

`recording` records what the parts of a model compute. `reference` computes the same parts on the host, from each
side's own inputs. `judging` compares the two, and `causes` looks for the reason of a difference.
"""
