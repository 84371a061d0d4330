"""Interrupts the import of verl at any line between the hook on it and the last verdict, each time in a new process.

    python -m tests.interrupting PLACES [MODULE…]

The modules are imported once, before. Then each try is a fork: verl is imported, the line is interrupted, verl is
imported again, and what the process is then is compared with what it is where nothing was interrupted. PLACES is a
number of random lines, or `every` for each line of the modules that judge. It prints what differs, as JSON.
"""

from __future__ import annotations

import dis
import errno
import importlib
import json
import os
import random
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import verl_npu
from verl_npu import activation

KINDS: tuple[Callable[[], BaseException], ...] = (
    KeyboardInterrupt,
    SystemExit,
    MemoryError,
    RecursionError,
    lambda: OSError(errno.EMFILE, "Too many open files"),
)
_PACKAGE = str(Path(verl_npu.__file__).parent)
_JUDGING = ("/registry/", "/session.py", "/activation.py", "/features/__init__.py", "/features/upstreams.py")

Place = tuple[str, int, int]
"""A file, a line of it, and how often the line was reached before."""


class _Lines:
    """Follows the lines of this thread while the hook on verl runs for the first time."""

    def __init__(self, line: Callable[[FrameType], None], file: str | None = None) -> None:
        """Call `line` at each line, or at each line of one file."""
        self._line = line
        self._file = file
        self._begin: CodeType = activation._begin.__code__
        self._inside = False

    def __enter__(self) -> None:
        sys.settrace(self._called)

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is self._begin and not self._inside:
            self._inside = True
            return self._outermost
        # What Python's own import system keeps of an import that was interrupted is its own affair.
        if not self._inside or frame.f_code.co_filename.startswith("<frozen"):
            return None
        return self._each if self._file in (None, frame.f_code.co_filename) else None

    def _outermost(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "return":
            sys.settrace(None)
        return self._each(frame, event, argument)

    def _each(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and self._file in (None, frame.f_code.co_filename) and not _leaves_with(frame):
            self._line(frame)
        return self._outermost if frame.f_code is self._begin else self._each


@cache
def _withs(code: CodeType) -> dict[int, int]:
    """Where `with` begins to enter, by line."""
    lines: dict[int, int] = {}
    line = 0
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line or line
        if instruction.opname in ("BEFORE_WITH", "SETUP_WITH"):
            lines[line] = instruction.offset
    return lines


def _leaves_with(frame: FrameType) -> bool:
    """Whether a line is that of a `with` whose end is reached: Python lets nothing be raised there but by a tracer."""
    entered = _withs(frame.f_code).get(frame.f_lineno)
    return entered is not None and frame.f_lasti > entered


def _places() -> list[Place]:
    reached: dict[tuple[str, int], int] = {}
    found: list[Place] = []

    def line(frame: FrameType) -> None:
        place = frame.f_code.co_filename, frame.f_lineno
        reached[place] = reached.get(place, 0) + 1
        found.append((*place, reached[place]))

    with _Lines(line):
        _import()
    return found


def _import() -> str:
    """Import verl, and say what was raised."""
    try:
        importlib.import_module("verl")
    except BaseException as error:
        return f"{type(error).__name__}: {error}".split("\n")[0]
    return ""


def _interrupted(place: Place, kind: Callable[[], BaseException]) -> Callable[[], dict[str, Any]]:
    def attempt() -> dict[str, Any]:
        left = place[2]

        def line(frame: FrameType) -> None:
            nonlocal left
            left -= frame.f_lineno == place[1]
            if not left:
                left = -1
                sys.settrace(None)
                raise kind()

        with _Lines(line, place[0]):
            first = _import()
        return {"first": first, "reached": left < 0, **_state()}

    return attempt


def _state() -> dict[str, Any]:
    """What the process is after verl was imported once more, and whether another thread can go on importing."""
    second = _import()
    # A lock that is held for ever by this thread would stop it.
    other = threading.Thread(target=activation.status, daemon=True)
    other.start()
    other.join(20)
    status = activation.status()
    states = {
        patch: entry["state"] for feature in status["features"].values() for patch, entry in feature["patches"].items()
    }
    return {"second": second, "active": status["active"], "states": states, "stuck": other.is_alive()}


def _forked(attempt: Callable[[], Any]) -> Any:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            told = json.dumps(attempt())
        except BaseException as error:
            told = json.dumps({"second": f"the try itself failed: {type(error).__name__}: {error}"})
        with os.fdopen(writing, "w") as stream:
            stream.write(told)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        told = stream.read()
    os.waitpid(child, 0)
    return json.loads(told) if told else {"second": "the process ended"}


def main(count: str, *modules: str) -> int:
    for module in modules:
        importlib.import_module(module)
    expected = _forked(_state)
    found: list[Place] = [(str(file), line, nth) for file, line, nth in _forked(_places)]
    if count == "every":
        judging = tuple(_PACKAGE + part for part in _JUDGING)
        chosen = [place for place in found if place[2] == 1 and place[0].startswith(judging)]
    else:
        chosen = random.Random(0).sample(found, int(count))
    bad = []
    for number, place in enumerate(chosen):
        kind = KINDS[number % len(KINDS)]
        became = _forked(_interrupted(place, kind))
        first, reached = became.pop("first", ""), became.pop("reached", None)
        if became != expected or not reached:
            differs = {p: s for p, s in became.get("states", {}).items() if s != expected["states"].get(p)}
            bad.append(
                {
                    "place": place,
                    "kind": repr(kind()),
                    "first": first,
                    "second": became["second"],
                    "reached": reached,
                    "stuck": became.get("stuck"),
                    "active": became.get("active"),
                    "states": len(became.get("states", {})),
                    "differs": dict(list(differs.items())[:2]),
                }
            )
    print(json.dumps({"lines": len(found), "tries": len(chosen), "expected": expected["second"], "bad": bad}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
