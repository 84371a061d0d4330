"""Operators that take the places of others."""
