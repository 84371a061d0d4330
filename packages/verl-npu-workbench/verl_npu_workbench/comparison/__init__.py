"""Comparison of two trainings by the standards of the Ascend ecosystem."""
