"""What an error shows of our own files: that one is missing or damaged, or nothing, because it passes.

It is loaded with the first module of ours: when no file can be opened it is too late to load it.
"""

from __future__ import annotations

import errno
import os

__all__ = ["is_damage", "is_passing"]

_OF_A_DISK = (errno.EIO, errno.ESTALE)
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, *_OF_A_DISK)


def is_passing(error: BaseException | None) -> bool:
    """Whether an error, or one that it comes from, says only that something could not be had at that moment: memory, a
    deeper stack, an open file. What was being found out is not known then."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, (MemoryError, RecursionError)):
            return True
        if isinstance(error, OSError) and error.errno in _PASSING:
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def is_damage(error: Exception) -> bool:
    """Whether an error shows that a file of ours is missing, cut short, or cannot be read."""
    if type(error).__name__ == "DamagedError":
        return True
    # Of our own files, a disk that cannot be read is damage: it may stay so.
    passes = is_passing(error) and getattr(error, "errno", None) not in _OF_A_DISK
    if passes or type(error).__module__ == f"{__package__}.errors":
        return False
    here = os.path.dirname(__file__) + os.sep
    places = [str(getattr(error, "filename", None) or "")]
    trace, innermost, importing = error.__traceback__, "", False
    while trace is not None:
        code, trace = trace.tb_frame.f_code, trace.tb_next
        importing = code.co_filename.startswith("<frozen importlib")
        if not importing:
            innermost = code.co_filename
            if code.co_name == "<module>" and not isinstance(error, OSError):
                places.append(innermost)
    if importing or isinstance(error, (ImportError, NameError, AttributeError, SyntaxError)):
        places.append(innermost)
    return any(place.startswith(here) for place in places)
