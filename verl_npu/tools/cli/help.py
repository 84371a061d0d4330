"""What `--help` says beyond the options: an example of each command."""

from __future__ import annotations


def example(*commands: str) -> str:
    """Return the end of a command's help: calls that one can copy."""
    # \b keeps click from filling the lines as running text.
    return "\n".join(["\b", "Example:" if len(commands) == 1 else "Examples:", *(f"  {each}" for each in commands)])
