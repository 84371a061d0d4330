"""verl's numbers by step, read from the lines of its console logger: the one logger that every revision has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ..training_log.line import parse


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
            for text in chunk[:whole].decode(errors="replace").splitlines():
                line = parse(text)
                if line is None:
                    continue
                if line.step not in self.by_step:
                    new.append(line.step)
                # Training and validation of one step have a line each.
                self.by_step[line.step] = {**line.metrics, **self.by_step.get(line.step, {})}
        return sorted(new)

    def series(self, metric: str) -> list[float]:
        """Return one metric by step, as far as it has no gap from step 1 on."""
        values = []
        step = 1
        while metric in self.by_step.get(step, {}):
            values.append(self.by_step[step][metric])
            step += 1
        return values
