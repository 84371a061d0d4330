"""Detection of missing or damaged files of verl-npu, and the messages about them.

This module of verl-npu is loaded first. It imports no other module, because it must work when another module cannot be
loaded.
"""

from __future__ import annotations

import errno
import os
import sys

_DISK_ERRORS = (errno.EIO, errno.ESTALE)
_TEMPORARY = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, *_DISK_ERRORS)


def is_temporary(error: BaseException | None) -> bool:
    """Return whether an error, or its cause, is temporary: the process ran short of memory, stack, or open files.

    Such an error does not show whether a file is damaged.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, (MemoryError, RecursionError)):
            return True
        if isinstance(error, OSError) and error.errno in _TEMPORARY:
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def is_damage(error: Exception) -> bool:
    """Return whether an error shows that a file of verl-npu is missing, truncated, or unreadable."""
    if type(error).__name__ == "DamagedError":
        return True
    # A disk error may last, so it counts as damage if it concerns verl-npu's own files.
    temporary = is_temporary(error) and getattr(error, "errno", None) not in _DISK_ERRORS
    if temporary or type(error).__module__ == f"{__package__}.errors":
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


# Messages to the user.


def leave_verl(error: Exception) -> None:
    """Print that a file of verl-npu cannot be loaded, and leave verl unpatched.

    If the user requires the patches, make the import of verl fail instead.
    """
    if os.environ.get("VERL_NPU", "").strip().lower() == "off":
        return
    line = described(error)
    if is_required():
        sys.meta_path.insert(0, _Refusal(line))
    what = "verl cannot be imported" if is_required() else "verl-npu stays off"
    say(f"{line}; {what} in this process")


def described(error: BaseException) -> str:
    """Return one line with the name of the file that could not be loaded, the error, and the fix."""
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
            # Python's import system failed on a file that it cannot read.
            where = frame.f_locals["path"]
    if isinstance(error, SyntaxError) and not error.filename:
        where = f"a module that {where} imports"
    short = isinstance(error, (MemoryError, RecursionError))
    fix = "start the program again" if short else "if that file is missing or damaged, install verl-npu again"
    return f"{where or 'verl_npu'} cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())}; {fix}"


def is_required() -> bool:
    """Return whether the user requires the patches: VERL_NPU is on, or VERL_NPU_STRICT is set."""
    switch, strict = (os.environ.get(name, "").strip().lower() for name in ("VERL_NPU", "VERL_NPU_STRICT"))
    return switch == "on" or (switch != "off" and strict not in ("", "0"))


def say(line: str) -> None:
    """Write one line to stderr. This function does not use `reporting`, because that module may itself be damaged."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(f"verl-npu: {line}\n")
            sys.stderr.flush()
    except (OSError, ValueError):
        # A closed pipe or a full disk leaves nobody to tell.
        return


class _Refusal:
    """An import finder that makes each import of verl raise an error."""

    def __init__(self, line: str) -> None:
        self.line = line

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "verl":
            raise ImportError(f"verl-npu: {self.line}", name=name)
