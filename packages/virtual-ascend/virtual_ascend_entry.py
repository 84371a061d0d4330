"""What Python's start and the end of `import torch` load of the virtual Ascend: it imports the rest under protection,
so that no damage to the files of the rest ends either. It stands alone, and is short, for that reason.

Nothing happens unless VIRTUAL_ASCEND is set.
"""

from __future__ import annotations

import os
import sys

__all__ = ["autoload", "damage", "start"]


def start() -> None:
    """Called by `virtual_ascend.pth` as Python starts."""
    if _asked_for():
        try:
            __import__("virtual_ascend.activation")
        except Exception as error:
            _say(damage(error))


def autoload() -> None:
    """The entry point of `torch.backends`: called at the end of `import torch`, it never raises."""
    if _asked_for():
        try:
            from virtual_ascend import activation

            activation.autoload()
        except Exception as error:
            _say(damage(error))


def damage(error: Exception) -> str:
    """Say in one line which file could not be loaded, and what to do."""
    name = error.name if isinstance(error, ImportError) else None
    where = getattr(error, "filename", None) or name or "virtual_ascend"
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return (
        f"{where} cannot be loaded: {said}; if that file is missing or damaged, install virtual-ascend again; "
        "there are no virtual NPUs in this process"
    )


def _asked_for() -> bool:
    return bool(os.environ.get("VIRTUAL_ASCEND", "").strip("0 "))


_silent = False


def _say(line: str) -> None:
    """Write one line to stderr, the first time."""
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
