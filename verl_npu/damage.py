"""What an error shows of our own files: that one is missing or damaged, or nothing, because it passes.

And what the user is told of it. It is the first module of ours that is loaded, and imports none: when another one
cannot be loaded it has to be there.
"""

from __future__ import annotations

import errno
import os
import sys

__all__ = ["described", "is_damage", "is_insisted_on", "is_passing", "leave_verl", "say"]

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


# What the user is told.


def leave_verl(error: Exception) -> None:
    """Say that a file of ours cannot be loaded, and leave verl as it is, or refuse its import to who insists on us."""
    if os.environ.get("VERL_NPU", "").strip().lower() == "off":
        return
    line = described(error)
    if is_insisted_on():
        sys.meta_path.insert(0, _Refusal(line))
    what = "the import of verl is refused" if is_insisted_on() else "verl-npu stays off"
    say(f"{line}; {what} in this process")


def described(error: BaseException) -> str:
    """Say in one line which file could not be loaded, and what to do."""
    if type(error).__name__ == "DamagedError":
        return str(error)
    name = error.name if isinstance(error, ImportError) else None
    where = given = getattr(error, "filename", None) or name
    trace = error.__traceback__
    here = os.path.dirname(__file__) + os.sep
    while trace is not None and not given:
        frame, trace = trace.tb_frame, trace.tb_next
        file = frame.f_code.co_filename
        if file.startswith(here) or (not where and not file.startswith("<")):
            where = file
        elif file.startswith("<") and isinstance(frame.f_locals.get("path"), str):
            # Python's own import system, at a file that it cannot read.
            where = frame.f_locals["path"]
    if isinstance(error, SyntaxError) and not error.filename:
        where = f"what {where} imports"
    short = isinstance(error, (MemoryError, RecursionError))
    fix = "start the program again" if short else "if that file is missing or damaged, install verl-npu again"
    return f"{where or 'verl_npu'} cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())}; {fix}"


def is_insisted_on() -> bool:
    """Whether the user wants no unpatched verl: VERL_NPU is on, or VERL_NPU_STRICT is set."""
    switch, strict = (os.environ.get(name, "").strip().lower() for name in ("VERL_NPU", "VERL_NPU_STRICT"))
    return switch == "on" or (switch != "off" and strict not in ("", "0"))


def say(line: str) -> None:
    """Write one line to stderr, past `reporting`, which may be what is damaged."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(f"verl-npu: {line}\n")
            sys.stderr.flush()
    except (OSError, ValueError):
        # A closed pipe or a full disk: there is nobody to tell.
        return


class _Refusal:
    """Has each import of verl raise an error, where it must not be imported unpatched."""

    def __init__(self, line: str) -> None:
        self.line = line

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "verl":
            raise ImportError(f"verl-npu: {self.line}", name=name)
