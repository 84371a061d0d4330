"""The progress of a job according to its console log, and whether the job finished."""

from __future__ import annotations

import bisect
import re
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from verl_npu.language import gettext as _

from ..logs.clocks import Clocks
from ..logs.lines import Line
from ..logs.sides import RECENT, Waiting, waiting_of
from ..logs.training import MODE, Assembly, parse_step

_STEP = re.compile(r"(?<![\w/])step:(?P<step>\d{1,15}) - ")
_BAR = re.compile(
    r"Training Progress: {1,4}(?P<percent>\d{1,3})%[^/\n]{0,40}\| (?P<done>\d{1,12})/(?P<total>\d{1,12}) "
)
_TOTAL = re.compile(r"Total training steps: (?P<total>\d{1,12})")
_EPOCH = re.compile(r"Epoch (?P<epoch>\d{1,9})/(?P<epochs>\d{1,9}): 100%")
_END = "Final validation metrics:"
_SMOKE = re.compile(r"^step {1,3}(?P<step>\d{1,9})/(?P<total>\d{1,9})  \S")
"""The line of a step in the output of scripts/smoke.sh and scripts/quickstart.sh."""
_SMOKE_END = re.compile(r"^(?:ok: \w+ at \S+: \d{1,9} steps\b|(?P<done>\d{1,9}) of (?P=done) steps in \d)")
_MOST_OWN = 500
_LAST = 12
"""The number of last lines of a log that are kept."""


@dataclass(slots=True)
class Progress:
    """The progress of a job."""

    log: str = ""
    growing: bool = False
    """True if a process has the log open for writing."""
    lines: int = 0
    last: int = 0
    """The number of the last logged step, or 0 if no step has been logged yet."""
    total: int = 0
    """The planned number of steps of the job, or 0 if the log does not show it."""
    ended: bool = False
    """True if the training finished."""
    last_lines: deque[Line] = field(default_factory=lambda: deque(maxlen=_LAST))
    """The last lines of the log that are not blank."""
    own: list[str] = field(default_factory=list)
    """The lines that report the states of verl-npu's features."""
    clocks: Clocks = field(default_factory=Clocks)
    """The clocks of the hosts that write to the log."""
    damaged: int = 0
    """The number of lines that are binary data instead of text."""
    mode: str = ""
    """The mode of verl's v1 trainer. Empty if no line names it."""
    _said: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT + 1))
    """The text of the last step lines."""
    _steps: array[int] = field(default_factory=lambda: array("Q"))
    """The line numbers of all lines that report a step."""
    _numbers: array[int] = field(default_factory=lambda: array("Q"))
    """The step that each of these lines reports."""

    def watch(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield the lines unchanged, and record the progress that they report. A line that reports a step is replaced
        by an empty line, so that it is not mistaken for an error."""
        note, keep = self.clocks.note, self.last_lines.append
        for line in lines:
            self.lines += 1
            process, text = line.process, line.text
            if text.startswith("step:") and self._take(line):
                keep(line)
                yield Line(line.number, process, "", ordinary=True)
                continue
            note(process.ip, process.pid, text)
            if (
                "step:" in text
                or "Training Progress" in text
                or "training steps" in text
                or "Epoch " in text
                or "Final validation" in text
            ):
                self._take(line)
            elif "'trainer_mode'" in text and (mode := MODE.search(text)):
                self.mode = mode[1]
            elif text.startswith(("step ", "ok: ")) or " steps in " in text:
                self._take_ours(text, line.number)
            if text.startswith("verl-npu: ") and "; " in text and len(self.own) < _MOST_OWN:
                self.own.append(text)
            if text and not text.isspace():
                keep(line)
                if "\0" in text or "\ufffd" in text:
                    self.damaged += 1
            yield line

    def _take(self, line: Line) -> bool:
        """Record the progress that a line reports. Return True if the line reports a step."""
        found = _STEP.search(line.text) if "step:" in line.text else None
        if found:
            step = int(found["step"])
            if step < self.last:
                # The job was restarted, and appends to the same log.
                self.ended = False
            self.last = step
            self._steps.append(line.number)
            self._numbers.append(step)
            self._said.append(line.text)
        if "Training Progress" in line.text:
            for bar in _BAR.finditer(line.text):
                self.ended = bar["done"] == bar["total"] or bar["percent"] == "100"
                self.total = int(bar["total"])
        total = _TOTAL.search(line.text)
        if total:
            self.total = int(total["total"])
        epoch = _EPOCH.search(line.text) if "Epoch " in line.text else None
        self.ended = (
            self.ended
            or _END in line.text
            or "Training Progress: 100%" in line.text
            or (found is not None and self.total > 0 and self.last >= self.total)
            or (epoch is not None and epoch["epoch"] == epoch["epochs"])
        )
        return found is not None

    def _take_ours(self, text: str, number: int) -> None:
        if found := _SMOKE.match(text):
            self.last, self.total = int(found["step"]), int(found["total"])
            self._steps.append(number)
            self._numbers.append(self.last)
        self.ended = self.ended or _SMOKE_END.match(text) is not None

    def survived(self, line: int, steps: int) -> bool:
        """Return whether the job survived an error in this line of the log: the job finished, or it made at least
        `steps` further steps."""
        return self.ended or len(self._steps) - bisect.bisect_right(self._steps, line) >= steps

    def waiting(self) -> Waiting | None:
        """Return which side of an asynchronous training run is waiting for the other side, based on the last steps."""
        assembly = Assembly(mode=self.mode)
        for text in self._said:
            line = parse_step(text)
            if line is not None:
                assembly.add(line)
        return waiting_of(assembly.log(self.log))

    @property
    def binary(self) -> bool:
        """Return whether most of the log is binary data."""
        return self.damaged * 2 > self.lines

    def place(self, line: int | None = None) -> str:
        """Describe the progress of the training at a line of the log. Without `line`, describe the progress at the end
        of the log."""
        done = len(self._steps) if line is None else bisect.bisect_right(self._steps, line)
        of = _(" of {total}").format(total=self.total) if self.total else ""
        return (
            _("after step {numbers}{of}").format(numbers=self._numbers[done - 1], of=of)
            if done
            else _("before the first step{of}").format(of=of)
        )


def joined(parts: Sequence[Progress]) -> Progress:
    """Combine the progress from all logs of a job. The last step and the total number of steps come from the log with
    the highest step."""
    if len(parts) == 1:
        return parts[0]
    console = max(parts, key=lambda each: (each.last, each.total, each.lines), default=Progress())
    return replace(
        console,
        lines=sum(each.lines for each in parts),
        ended=any(each.ended for each in parts),
        damaged=sum(each.damaged for each in parts),
    )
