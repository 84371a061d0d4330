"""A part of a page that a program makes: all between two markers."""

from __future__ import annotations

__all__ = ["replaced"]


def replaced(text: str, begin: str, end: str, content: str) -> str:
    """Return `text` with `content` between the markers. Raises ValueError if one is missing."""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"expected {begin} and {end} in the page")
    return f"{before}{begin}\n{content}\n{end}{after}"
