"""Patterns of operators that are replaced by other operators."""
