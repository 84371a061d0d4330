"""Helpers for the tests of several distributions of this project. Conftests put scripts/ on the path."""
