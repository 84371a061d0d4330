"""verl's numbers by step, read from the lines of its console logger: the one logger that every revision has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

# A progress bar on stderr may stand before it on the same line, with no space between.
_LINE = re.compile(r"(?<![\w/])step:(\d+) - (\S+:.*)")
_VALUE = re.compile(r"(?:np\.\w+\()?([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))\)?", re.IGNORECASE)


def parse(line: str) -> tuple[int, dict[str, float]] | None:
    """Return the step and its metrics, or None when this is no step line."""
    found = _LINE.search(line)
    if found is None:
        return None
    metrics = {}
    for part in found.group(2).split(" - "):
        name, _, text = part.strip().rpartition(":")
        value = _VALUE.fullmatch(text)
        if name and value:
            metrics[name] = float(value.group(1))
    return (int(found.group(1)), metrics) if metrics else None


class Steps:
    """The steps seen so far in a set of growing files.

    Ray forwards the trainer's lines to the driver and may lose the last ones, so its own worker files are read too:
    a step found twice is one step.
    """

    def __init__(self, files: Callable[[], Iterable[Path]]) -> None:
        self._files = files
        self._read: dict[Path, int] = {}
        self.by_step: dict[int, dict[str, float]] = {}

    def poll(self) -> list[int]:
        """Read what is new; return the new steps in order."""
        new = []
        for path in self._files():
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                chunk = file.read()
            whole = chunk.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + whole
            for line in chunk[:whole].decode(errors="replace").splitlines():
                found = parse(line)
                if found is None:
                    continue
                step, metrics = found
                if step not in self.by_step:
                    new.append(step)
                # Training and validation of one step have a line each.
                self.by_step[step] = {**metrics, **self.by_step.get(step, {})}
        return sorted(new)

    def series(self, metric: str) -> list[float]:
        """Return one metric by step, as far as it has no gap from step 1 on."""
        values = []
        step = 1
        while metric in self.by_step.get(step, {}):
            values.append(self.by_step[step][metric])
            step += 1
        return values
