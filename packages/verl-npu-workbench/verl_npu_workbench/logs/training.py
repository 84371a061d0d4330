"""Reads the steps of a training run from verl's console log, its file logger's output, or TensorBoard's event files.

verl's console logger prints `step:N - name:value - …` (`concat_dict_to_str` in verl/utils/logger/aggregate_logger.py,
the same at every pin). Its file logger writes `{"step": N, "data": {name: value}}` (`FileLogger` in
verl/utils/tracking.py). Ray puts a coloured process name in front of a line, and may add how often the line was
repeated. The log may be growing while it is read.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import select
import sys
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from verl_npu.errors import SourceError
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from .files import UNREADABLE, NoLog, is_stream, reading, unpacked
from .lines import parts_of, uncoloured

# A progress bar on stderr may precede it on the same line, without a space.
_STEP = re.compile(r"(?<![\w/])step:(\d{1,15}) - (\S.*)")
# The line of a step from scripts/smoke.sh and scripts/quickstart.sh.
_SMOKE = re.compile(r"^step {1,3}(\d{1,9})/\d{1,9}  (\w{1,40}) (\S+)(?:  (\S+) s)?$")
_TOTAL = re.compile(r"Total training steps: (\d{1,12})")
MODE = re.compile(r"'trainer_mode': '(\w{1,40})'")
"""The mode of verl's v1 trainer, in the configuration that verl prints at its start."""
_SMOKES = {"reward": "critic/score/mean", "loss": "train/loss"}
_NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|nan|inf)"
# A name contains colons if a data set's name does. Text after a blank is not verl's, but from Ray or a progress bar.
_METRIC = re.compile(
    rf"(?P<name>\S.*?):(?:np\.\w+\((?P<numpy>{_NUMBER}|True|False)\)|(?P<plain>{_NUMBER}|True|False))(?=\s|$)",
    re.IGNORECASE,
)
_JSON_STARTS = frozenset("{ \t")
_STEPS = 10**15
_LARGEST = 1 << 1023
_TRUTH = {"true": 1.0, "false": 0.0}
_EVENT_FILE = "tfevents"
_CHUNK = 1 << 20
_LONGEST_LINE = 1 << 20
"""The maximum number of bytes of a line. The line of a step has a few thousand. Without the limit, a file without line
ends would fill the memory."""
_SHOWN = 8
"""The maximum number of restarts and ranges of steps that are listed."""
_SAYS_SIMULATED = "SIMULATED"
_OURS = "verl-npu: "
_MOST_STEPS, _MOST_VALUES = 50_000, 1_500_000
"""The maximum number of steps and values that are kept. If a log has more, every second step is dropped, repeatedly,
until the rest fits."""
_FIRST, _LATEST, _MOST_NOT_FINITE = 100, 1_000, 1_000
"""The numbers of steps that are never dropped: of the first steps, of the last steps, and of steps with NaN or
infinity."""
_MOST_RESTARTS = 10_000


# A log has millions of them, and dataclasses would take twice as long.
class StepLine(NamedTuple):
    """The metrics that one line of a log reports for a step."""

    step: int
    metrics: Mapping[str, float]
    damaged: int = 0
    """The number of parts of the line that could not be read. verl itself prints only numbers."""
    goes_on: bool = False
    """True if the line ends with a separator, because something broke it into several lines."""


def parse_step(text: str) -> StepLine | None:
    """Parse a line that reports a step. Return the metrics, or None for any other line."""
    if text[:1] in _JSON_STARTS and text.lstrip()[:1] == "{":
        return _file_logger(text)
    found = _STEP.search(uncoloured(text))
    if found is None:
        return _parse_smoke(text) if text.startswith("step ") else None
    step, said = found.groups()
    said = said.rstrip()
    goes_on = said.endswith(" -")
    metrics, damaged = _metrics(said.removesuffix(" -") if goes_on else said)
    return StepLine(int(step), metrics, damaged, goes_on) if metrics else None


def _metrics(said: str) -> tuple[dict[str, float], int]:
    """Return the metrics by name, and the number of parts that are not metrics."""
    metrics: dict[str, float] = {}
    damaged = 0
    for part in said.split(" - "):
        name, _unused, value = part.rpartition(":")
        try:
            # The fast path for nearly all parts, which are exactly as verl writes them.
            if name and " " not in name:
                metrics[sys.intern(name)] = float(value)
                continue
        except ValueError:
            pass
        metric = _METRIC.match(part.strip())
        if metric is None:
            damaged += 1
        else:
            metrics[sys.intern(metric["name"])] = _number(metric["numpy"] or metric["plain"])
    return metrics, damaged


def _continuation(before: StepLine, text: str) -> StepLine | None:
    """Parse the continuation of a step line that was broken into several lines, or return None if the text is not
    such a continuation."""
    said = text.strip()
    if not said.strip("….- "):
        return before._replace(metrics={}, damaged=0)
    goes_on = said.endswith(" -")
    metrics, damaged = _metrics(said.removesuffix(" -") if goes_on else said)
    return None if damaged else StepLine(before.step, metrics, 0, goes_on)


def _parse_smoke(text: str) -> StepLine | None:
    found = _SMOKE.match(text.rstrip())
    if found is None:
        return None
    step, label, value, seconds = found.groups()
    texts = {_SMOKES.get(label, label): value, **({"timing_s/step": seconds} if seconds else {})}
    try:
        return StepLine(int(step), {name: float(each) for name, each in texts.items()})
    except ValueError:
        return None


def _number(text: str) -> float:
    truth = _TRUTH.get(text.lower())
    return float(text) if truth is None else truth


def _value(value: float | None) -> float:
    # orjson writes NaN and infinity as null.
    if value is None:
        return math.nan
    # An integer that is too large for a float would raise OverflowError.
    if abs(value) < _LARGEST:
        return float(value)
    return math.inf if value > 0 else -math.inf


def _file_logger(text: str) -> StepLine | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    step, data = content.get("step"), content.get("data")
    if not isinstance(step, int) or isinstance(step, bool) or not isinstance(data, dict):
        return None
    if not 0 <= step < _STEPS:
        return None
    metrics = {name: _value(value) for name, value in data.items() if value is None or isinstance(value, int | float)}
    return StepLine(step, metrics) if metrics else None


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart of the job at an earlier step, from a checkpoint or from the beginning."""

    after: int
    """The number of the last step before the restart."""
    to: int
    """The number of the first step after the restart."""


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """The steps of a training run, read from a log."""

    source: str
    steps: Mapping[int, Mapping[str, float]]
    """The metrics by step, in order. If a step was run twice, the later run counts."""
    last: int
    """The step that was logged last. After a restart, it may not be the highest one."""
    restarts: tuple[Restart, ...] = ()
    left_over: tuple[int, ...] = ()
    """Steps of an earlier run that no later run has reached again."""
    damaged: int = 0
    """The number of parts of step lines that could not be read."""
    cut: bool = False
    """True if the log ends in the middle of a line, so that its last value may be incomplete."""
    simulated: bool = False
    """True if the log contains verl-npu's message that the NPUs are virtual."""
    total: int = 0
    """The planned number of steps of the training, or 0 if no line shows it."""
    went_back: int = 0
    """The number of restarts. It may be larger than the number of entries in `restarts`."""
    left_out: int = 0
    """The number of steps that were read but omitted from `steps`, because there are too many."""
    stride: int = 1
    """The interval between kept steps: 2 means that every second step is kept."""
    mode: str = ""
    """The mode of verl's v1 trainer. Empty if no line names it."""

    @property
    def count(self) -> int:
        """The number of steps in the log."""
        return len(self.steps) + self.left_out

    def series(self, *names: str) -> dict[int, float]:
        """Return the values of one metric by step. If the metric has several names, the value at each step comes from
        the first of `names` that was logged at that step."""
        found = {}
        for step, metrics in self.steps.items():
            for name in names:
                if name in metrics:
                    found[step] = metrics[name]
                    break
        return found

    def gaps(self) -> list[tuple[int, int]]:
        """Return the first and the last missing step of each gap, or an empty list if steps were dropped on
        purpose."""
        if self.left_out:
            return []
        return [(one + 1, two - 1) for one, two in pairwise(self.steps) if two > one + 1]

    def notes(self) -> list[str]:
        """Return notes about this log for the user, as sentences without a period."""
        said = [
            _("the log goes back from step {after} to step {to}; if a step ran twice, the later run counts").format(
                after=restart.after, to=restart.to
            )
            for restart in self.restarts[:_SHOWN]
        ]
        more = self.went_back - _SHOWN
        if more > 0:
            text = ngettext("the log goes back {count} more time", "the log goes back {count} more times", more)
            said.append(text.format(count=more))
        if self.left_over:
            said.append(
                _("{steps} from an earlier run, because no later run has reached these steps").format(
                    steps=_steps(self.left_over)
                )
            )
        gaps = self.gaps()
        if gaps:
            said.append(_("the log has no line for step {rows}").format(rows=_rows(gaps)))
        if self.left_out:
            said.append(
                _(
                    "the log has {count} steps, which are too many; the first {first} steps, the last {latest}, "
                    "and one in every {stride} steps between them are used"
                ).format(count=self.count, first=_FIRST, latest=_LATEST, stride=self.stride)
            )
        if self.damaged:
            said.append(
                _("{damaged} values in the step lines are damaged and were ignored").format(damaged=self.damaged)
            )
        if self.cut:
            said.append(_("the last line of the log is cut off, and its incomplete value was ignored"))
        return said


@dataclass(slots=True)
class Assembly:
    """A log that is being read, with everything that its lines have reported so far."""

    _steps: dict[int, dict[str, float]] = field(default_factory=dict)
    _run_of: dict[int, int] = field(default_factory=dict)
    _latest: dict[str, int] = field(default_factory=dict)
    """The last step of each metric. It is kept for each metric, because training and validation of a step have
    separate lines, and asynchronous trainers log a validation after later steps."""
    _restarts: list[Restart] = field(default_factory=list)
    _went_back: int = 0
    _damaged: int = 0
    _last: int = 0
    _values: int = 0
    _most_values: int = _MOST_VALUES
    _left_out: int = 0
    _stride: int = 1
    cut: bool = False
    simulated: bool = False
    total: int = 0
    mode: str = ""

    def add(self, line: StepLine) -> None:
        """Add the next line. A repeated line, such as a worker's copy of the driver's line, changes nothing."""
        step, metrics = line.step, line.metrics
        known = self._steps.get(step)
        if known is None and step > self._last:
            # The fast path: nearly all lines are about a new step.
            self._steps[step] = dict(metrics)
            self._last = step
        else:
            known = known or {}
            this_run = self._run_of.get(step) == self._went_back
            if this_run and all(_same(known.get(name), value) for name, value in metrics.items()):
                return
            if any(self._latest.get(name, -1) >= step for name in metrics):
                self._went_back += 1
                if len(self._restarts) < _MOST_RESTARTS:
                    self._restarts.append(Restart(self._last, step))
                self._latest.clear()
                self._last = step
                this_run = False
            if not this_run and not known.keys().isdisjoint(metrics):
                # The metrics of the earlier run must not mix with those of the later run.
                known.clear()
            self._steps.setdefault(step, {}).update(metrics)
            self._last = max(self._last, step)
        self._run_of[step] = self._went_back
        for name in metrics:
            self._latest[name] = step
        self._damaged += line.damaged
        self._values += len(metrics)
        if len(self._steps) > _MOST_STEPS or self._values > self._most_values:
            self._thin()

    def leaves_out(self, line: str) -> bool:
        """Return whether a line of a very long log can be skipped. Only every `stride`-th step of such a log is kept,
        so the lines of other steps can be skipped.

        Call this method only for a line far from the end of the log.
        """
        if self._stride == 1 or not line.startswith("step:") or "nan" in line or "inf" in line:
            return False
        number = line[5:21].partition(" ")[0]
        if not number.isdecimal() or not self._last < int(number) < (self._last // self._stride + 1) * self._stride:
            return False
        self._last = int(number)
        self._left_out += 1
        return True

    def _thin(self) -> None:
        """Drop steps until half of the maximum number is left. The choice depends only on the step numbers, so two
        logs with the same steps keep the same steps."""
        steps = sorted(self._steps)
        now = bisect_right(steps, self._last)
        always = {*steps[:_FIRST], *steps[max(now - _LATEST, 0) : now]}
        # Keep steps with NaN or infinity, because they must be reported.
        odd = (step for step in steps if not all(map(math.isfinite, self._steps[step].values())))
        always.update(step for step, _unused in zip(odd, range(_MOST_NOT_FINITE), strict=False))
        while True:
            window = -1
            for step in steps:
                if step // self._stride != window:
                    window = step // self._stride
                elif step not in always:
                    del self._steps[step], self._run_of[step]
                    self._left_out += 1
            steps = sorted(self._steps)
            self._values = sum(map(len, self._steps.values()))
            few = len(steps) <= _MOST_STEPS // 2 and self._values <= self._most_values // 2
            if few or self._stride > _STEPS:
                break
            self._stride *= 2
        # A few steps with very many values may still exceed the limit: raise it, or every line would start this again.
        self._most_values = max(self._most_values, 2 * self._values)

    def log(self, source: str) -> TrainingLog:
        """Return the log as far as it has been read."""
        steps = sorted(self._steps)
        return TrainingLog(
            source=source,
            steps={step: self._steps[step] for step in steps},
            last=self._last,
            restarts=tuple(self._restarts),
            left_over=tuple(steps[bisect_right(steps, self._last) :]),
            damaged=self._damaged,
            cut=self.cut,
            simulated=self.simulated,
            total=self.total,
            went_back=self._went_back,
            left_out=self._left_out,
            stride=self._stride,
            mode=self.mode,
        )


def spans(steps: Iterable[int]) -> str:
    """Format steps as text, for example `1 to 4, 7`."""
    rows: list[list[int]] = []
    for step in sorted(steps):
        if rows and step == rows[-1][1] + 1:
            rows[-1][1] = step
        else:
            rows.append([step, step])
    return _rows(rows)


def _rows(rows: Sequence[Sequence[int]]) -> str:
    left = len(rows) - _SHOWN
    more = ngettext(" and {count} more range", " and {count} more ranges", left) if left > 0 else ""
    return _("{rows}{more}").format(
        rows=_(", ").join(_span(first, final) for first, final in rows[:_SHOWN]), more=more.format(count=left)
    )


def _span(first: int, final: int) -> str:
    return str(first) if first == final else _("{first} to {final}").format(first=first, final=final)


def _steps(steps: tuple[int, ...]) -> str:
    return (
        _("step {steps} is").format(steps=steps[0])
        if len(steps) == 1
        else _("steps {spans} are").format(spans=spans(steps))
    )


def _same(one: float | None, other: float) -> bool:
    return one is not None and (one == other or (math.isnan(one) and math.isnan(other)))


def _event_files(path: Path) -> list[Path]:
    """Return the event files of one training run, the oldest first. `path` is an event file or a folder with event
    files."""
    if path.is_file():
        return [path]
    # os.walk skips a folder that a running job removes meanwhile, where rglob raises.
    files = (Path(folder, name) for folder, _unused, names in os.walk(path) for name in names if _EVENT_FILE in name)
    found = sorted(file for file in files if file.is_file())
    folders = sorted({str(file.parent) for file in found})
    if len(folders) != 1:
        raise SourceError(
            subject=str(path),
            expected=_("a folder with the TensorBoard files (events.out.tfevents.…) of a single training run"),
            found=_("the files of {count} training runs: {folders}").format(
                count=len(folders), folders=_(", ").join(folders)
            )
            if folders
            else _("no TensorBoard files"),
            fix=_("specify the folder that directly contains the files of one training run"),
        )
    # Their names begin with the time of their creation.
    return sorted(found, key=lambda file: file.name)


def _events(files: Sequence[Path]) -> Iterator[StepLine]:
    """Yield a step line for each event, in writing order."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise SourceError(
            subject=str(files[0]),
            expected=_("an installed tensorboard package, which is required to read TensorBoard files"),
            found=_("an import error: {error}").format(error=error),
            fix=_("pip install tensorboard, or specify the job's console log"),
        ) from error
    for file in files:
        for event in EventFileLoader(str(file)).Load():
            found = {
                value.tag: tensor_util.make_ndarray(value.tensor)
                for value in event.summary.value
                if value.metadata.plugin_data.plugin_name == "scalars"
            }
            metrics = {tag: float(array) for tag, array in found.items() if array.size == 1}
            if metrics:
                yield StepLine(event.step, metrics)


class _Splitter:
    """Splits the chunks of a file into lines, and skips lines that are too long."""

    def __init__(self) -> None:
        self.rest = b""
        """The last, incomplete line."""
        self._skips = False

    def text(self, chunk: bytes) -> str:
        """Append the next chunk, and return the lines that the chunk completes, as a single string."""
        if self._skips:
            _unused, end, chunk = chunk.partition(b"\n")
            self._skips = not end
        whole, end, rest = chunk.rpartition(b"\n")
        whole, self.rest = (self.rest + whole, rest) if end else (b"", self.rest + chunk)
        if len(self.rest) > _LONGEST_LINE:
            self.rest, self._skips = b"", True
        return whole.decode(errors="replace")

    def lines(self, chunk: bytes) -> list[str]:
        """Append the next chunk, and return the lines that the chunk completes."""
        return [line for line in self.text(chunk).split("\n") if len(line) <= _LONGEST_LINE]


class Follower(ABC):
    """A reader of a log that may still grow."""

    console = True
    """True for a console log, which contains more than steps."""
    ended = False
    """True if nothing more can be added to the log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._assembly = Assembly()

    @abstractmethod
    def poll(self) -> bool:
        """Read new lines, and return whether there were any.

        Raises:
            SourceError: the file is not a log, or cannot be read.
        """

    def log(self) -> TrainingLog:
        """Return the part of the log that has been read. The next poll continues after this part."""
        return self._assembly.log(str(self.path))

    def finish(self) -> TrainingLog:
        """Read the rest of the log, and return the complete log. Call this method only after the last write to the
        log."""
        return self.log()

    def files(self) -> Sequence[Path]:
        """Return the files of the log."""
        return [self.path]

    def end(self) -> Iterator[str]:
        """Yield the lines around the last steps. Errors in earlier lines can be ignored, because the training
        continued after them."""
        return iter(())


_FEW = 3
"""The number of last steps whose lines are examined. Two steps after an error show that the training survived it."""


class _Lines(Follower):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._begin()

    def _begin(self) -> None:
        """Start reading at the beginning of the file."""
        self._assembly = Assembly()
        self._offset = self._counted = 0
        self._splitter = _Splitter()
        self._places: deque[tuple[int, int]] = deque([(0, 0)])
        """Offsets of lines, each with the number of step lines before it. The first offset is where the end of the
        log, as yielded by `end`, begins."""
        self._broken: StepLine | None = None

    def poll(self) -> bool:
        try:
            with reading(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                stream = unpacked(file)
                packed = stream is not file
                if size < self._offset or (packed and size != self._offset):
                    # The job was restarted with the same file. A compressed file is always read as a whole.
                    self._begin()
                if packed and size == self._offset:
                    return False
                if not packed:
                    file.seek(self._offset)
                news = self._take(iter(lambda: stream.read(_CHUNK), b""))
                if packed:
                    self._offset = size
                return news
        except NoLog as error:
            raise _unreadable(self.path, str(error)) from None
        except UNREADABLE as error:
            raise _unreadable(self.path, getattr(error, "strerror", None) or str(error)) from error

    def _take(self, chunks: Iterator[bytes]) -> bool:
        news = False
        for chunk in chunks:
            if self._offset == 0:
                if b"\0" in chunk[:4096]:
                    raise _unreadable(self.path, _("a binary file"))
                self.console = not chunk.startswith(b"{")
            news = True
            self._offset += len(chunk)
            self._add(self._splitter.text(chunk))
            self._places.append((self._offset - len(self._splitter.rest), self._counted))
            while len(self._places) > 1 and self._places[1][1] <= self._counted - _FEW:
                self._places.popleft()
        return news

    def _add(self, text: str) -> None:
        if _SAYS_SIMULATED in text and _OURS in text:
            said = (line for line in text.split("\n") if _SAYS_SIMULATED in line)
            self._assembly.simulated |= any(_OURS in line for line in said)
        if "'trainer_mode'" in text and (mode := MODE.search(text)):
            self._assembly.mode = mode[1]
        if "step" not in text and self._broken is None:
            return
        lines = text.split("\n")
        followed = len(lines) - _LATEST
        for place, raw in enumerate(lines):
            if place < followed and self._assembly.leaves_out(raw):
                self._counted += 1
                continue
            if self._broken is not None:
                self._broken = _continuation(self._broken, raw)
                if self._broken is not None:
                    self._assembly.add(self._broken)
                    self._broken = self._broken if self._broken.goes_on else None
                    continue
            if "step" not in raw or len(raw) > _LONGEST_LINE:
                continue
            line = parse_step(raw)
            if line is not None:
                self._assembly.add(line)
                self._counted += 1
                self._broken = line if line.goes_on else None
            elif "Total" in raw and (total := _TOTAL.search(raw)):
                self._assembly.total = int(total[1])

    def finish(self) -> TrainingLog:
        # From a last line that is cut off, take only the complete values.
        text = self._splitter.rest.decode(errors="replace")
        self._splitter = _Splitter()
        whole = parse_step(text)
        if text.lstrip().startswith("{"):
            self._assembly.cut = whole is None
        elif whole is not None and not whole.goes_on:
            # The last value may have had more digits.
            self._assembly.cut = True
            whole = parse_step(text.rpartition(" - ")[0])
        if whole is not None:
            self._assembly.add(whole)
        return self.log()

    def end(self) -> Iterator[str]:
        try:
            with self.path.open("rb") as file:
                stream = unpacked(file)
                stream.seek(self._places[0][0])
                with io.TextIOWrapper(stream, errors="replace") as text:
                    yield from parts_of(text)
        except UNREADABLE:
            return


_MOST_KEPT = 16 * _CHUNK


class _Stream(_Lines):
    """A log from a pipe. A pipe can be read only once, so the end of the log is kept in memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._opened = reading(path)
        self._descriptor = self._opened.__enter__().fileno()
        self._kept: deque[bytes] = deque()

    def poll(self) -> bool:
        return not self.ended and self._take(self._chunks(wait=False))

    def _chunks(self, wait: bool) -> Iterator[bytes]:
        while wait or select.select([self._descriptor], [], [], 0)[0]:
            chunk = os.read(self._descriptor, _CHUNK)
            if not chunk:
                self.ended = True
                return
            self._kept.append(chunk)
            yield chunk
            start = max(self._places[0][0], self._offset - _MOST_KEPT)
            while self._offset - sum(map(len, self._kept)) + len(self._kept[0]) <= start:
                self._kept.popleft()

    def finish(self) -> TrainingLog:
        if not self.ended:
            self._take(self._chunks(wait=True))
        return super().finish()

    def end(self) -> Iterator[str]:
        return iter(b"".join(self._kept).decode(errors="replace").splitlines(keepends=True))


class _Events(Follower):
    """A log in TensorBoard's event files. When a file has grown, all files are read again, because the reader cannot
    resume."""

    console = False
    _size = -1

    def files(self) -> Sequence[Path]:
        return _event_files(self.path)

    def poll(self) -> bool:
        files = self.files()
        try:
            size = sum(file.stat().st_size for file in files)
        except OSError as error:
            raise _unreadable(self.path, error.strerror or str(error)) from error
        if size == self._size:
            return False
        self._size = size
        self._assembly = Assembly()
        for line in _events(files):
            self._assembly.add(line)
        return True


def follow(path: Path) -> Follower:
    """Return a reader of an existing log.

    Raises:
        SourceError: the log does not exist.
    """
    if is_stream(path):
        try:
            return _Stream(path)
        except (NoLog, OSError) as error:
            raise _unreadable(path, str(error)) from None
    if not path.exists():
        raise _unreadable(path, _("no such file"))
    return _Events(path) if path.is_dir() or _EVENT_FILE in path.name else _Lines(path)


def read(path: Path) -> TrainingLog:
    """Read a finished log.

    Raises:
        SourceError: the file is not a log, cannot be read, or contains no steps.
    """
    return whole(follow(path))


def whole(follower: Follower) -> TrainingLog:
    """Read the rest of a finished log, and return the complete log.

    Raises:
        SourceError: the file is not a log, cannot be read, or contains no steps.
    """
    follower.poll()
    log = follower.finish()
    if not log.steps:
        raise _unreadable(follower.path, _("a file without a step"))
    return log


def _unreadable(path: Path, found: str) -> SourceError:
    return SourceError(
        subject=str(path),
        expected=_(
            "a log of a verl training job: a console log (lines `step:1 - …`), a log of verl's file logger, or "
            "TensorBoard files"
        ),
        found=found,
        fix=_(
            "wait for the first step (`verl-npu doctor --hang` shows whether the job makes progress), or specify "
            "the file that contains the job's output or the folder that contains its TensorBoard files"
        ),
    )


class Steps:
    """The steps that have been read so far from a set of growing files.

    Ray forwards the trainer's lines to the driver and may lose the last ones. The workers' own files are therefore
    also read. A step that is in several files counts once.
    """

    def __init__(self, files: Callable[[], Iterable[Path]]) -> None:
        self._files = files
        self._read: dict[Path, int] = {}
        self._splitters: dict[Path, _Splitter] = {}
        self.by_step: dict[int, dict[str, float]] = {}

    def poll(self) -> list[int]:
        """Read new lines, and return the new steps in order."""
        new = []
        for path in self._files():
            splitter = self._splitters.setdefault(path, _Splitter())
            for text in self._lines(path, splitter):
                line = parse_step(text)
                if line is None:
                    continue
                if line.step not in self.by_step:
                    new.append(line.step)
                # Training and validation of a step have separate lines.
                self.by_step[line.step] = {**line.metrics, **self.by_step.get(line.step, {})}
        return sorted(new)

    def _lines(self, path: Path, splitter: _Splitter) -> Iterator[str]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            while chunk := file.read(_CHUNK):
                self._read[path] = file.tell()
                yield from splitter.lines(chunk)

    def series(self, metric: str) -> list[float]:
        """Return the values of one metric from step 1 up to the first gap."""
        values = []
        step = 1
        while metric in self.by_step.get(step, {}):
            values.append(self.by_step[step][metric])
            step += 1
        return values
