"""What the entry points of verl-npu load: it imports the rest under protection, so that no damage to the files of the
rest ends `import torch`, which loads this in every process. It stands alone, and is short, for that reason.
"""

from __future__ import annotations

import os
import sys

__all__ = ["activate", "autoload", "damage", "is_insisted_on", "say"]


def damage(error: BaseException) -> str:
    """Say in one line which file could not be loaded, and what to do."""
    name = error.name if isinstance(error, ImportError) else None
    where = given = getattr(error, "filename", None) or name
    trace = error.__traceback__
    while trace is not None and not given:
        frame, trace = trace.tb_frame, trace.tb_next
        file = frame.f_code.co_filename
        if not file.startswith("<"):
            where = file
        elif isinstance(frame.f_locals.get("path"), str):
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
    """Write one line to stderr."""
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


def _give_up(error: Exception) -> None:
    if os.environ.get("VERL_NPU", "").strip().lower() == "off":
        return
    line = damage(error)
    if is_insisted_on():
        sys.meta_path.insert(0, _Refusal(line))
    what = "the import of verl is refused" if is_insisted_on() else "verl-npu stays off"
    say(f"{line}; {what} in this process")


def _off() -> None:
    """Called in the place of what could not be imported."""


try:
    from verl_npu.activation import activate, autoload
except Exception as error:
    # An error of these says what somebody has to mend elsewhere.
    if type(error).__module__ == "verl_npu.errors":
        raise
    _give_up(error)
    activate = autoload = _off
