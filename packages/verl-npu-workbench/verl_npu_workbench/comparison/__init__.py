"""Comparison of two training runs by the standards of the Ascend ecosystem."""
