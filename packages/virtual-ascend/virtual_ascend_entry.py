"""The part of the virtual Ascend that Python's start and the end of `import torch` load.

It imports the rest inside a try block, so that a damaged file of the rest ends neither. For that reason it is short
and imports nothing of the package by itself.

Nothing happens unless VIRTUAL_ASCEND is set.
"""

from __future__ import annotations

import os
import sys


def start() -> None:
    """Start the virtual Ascend if it is asked for. `virtual_ascend.pth` calls this as Python starts."""
    if _asked_for():
        try:
            __import__("virtual_ascend.activation")
        except Exception as error:
            _say(damage(error))


def autoload() -> None:
    """Bring up virtual NPUs if they are asked for; never raise.

    This is the entry point of `torch.backends`, called at the end of `import torch`.
    """
    if _asked_for():
        try:
            from virtual_ascend import activation

            activation.autoload()
        except Exception as error:
            _say(damage(error))


def damage(error: Exception) -> str:
    """Return a line that says which file could not be loaded, and what to do."""
    name = error.name if isinstance(error, ImportError) else None
    where = getattr(error, "filename", None) or name or "virtual_ascend"
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return (
        f"{where} cannot be loaded: {said}; if that file is missing or damaged, install virtual-ascend again; "
        "this process has no virtual NPUs"
    )


def _asked_for() -> bool:
    return bool(os.environ.get("VIRTUAL_ASCEND", "").strip("0 "))


_silent = False


def _say(line: str) -> None:
    """Write a line to stderr, only once in a process."""
    global _silent
    if _silent or sys.stderr is None:
        return
    _silent = True
    try:
        sys.stderr.write(f"virtual-ascend: {line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        # A closed pipe or a full disk: there is nobody to tell.
        return
