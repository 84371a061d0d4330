"""A training's steps, as verl logged them: from its console's log, its file logger's or TensorBoard's event files.

verl's console logger prints `step:N - name:value - …` (`concat_dict_to_str` in verl/utils/logger/aggregate_logger.py,
the same at every pin), its file logger `{"step": N, "data": {name: value}}` (`FileLogger` in verl/utils/tracking.py).
Ray puts the process in front, colours it, and may say after it how often it was repeated. A log may still grow.
"""

from __future__ import annotations

import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from verl_npu.errors import TrainingLogError
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from .lines import uncoloured

# A progress bar on stderr may stand before it on the same line, with no space between.
_STEP = re.compile(r"(?<![\w/])step:(\d{1,15}) - (\S.*)")
# As scripts/smoke.sh and scripts/quickstart.sh print it.
_SMOKE = re.compile(r"^step {1,3}(\d{1,9})/\d{1,9}  (\w{1,40}) (\S+)(?:  (\S+) s)?$")
_SMOKES = {"reward": "critic/score/mean", "loss": "train/loss"}
_NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|nan|inf)"
# Names hold colons where a data set's name does; what follows a blank is not verl's, but Ray's or a progress bar's.
_METRIC = re.compile(
    rf"(?P<name>\S.*?):(?:np\.\w+\((?P<numpy>{_NUMBER}|True|False)\)|(?P<plain>{_NUMBER}|True|False))(?=\s|$)",
    re.IGNORECASE,
)
_STEPS = 10**15
_LARGEST = 1 << 1023
_TRUTH = {"true": 1.0, "false": 0.0}
_EVENT_FILE = "tfevents"
_CHUNK = 1 << 20
_LONGEST_LINE = 1 << 20
"""Bytes. A step's line has a few thousand; a longer one is left out, and a file without line ends fills no memory."""
_SHOWN = 8
"""Restarts, and rows of steps that are missing, that are named one by one."""
_SAYS_SIMULATED = b"SIMULATED"
_OURS = b"verl-npu: "


@dataclass(frozen=True, slots=True)
class StepLine:
    """What one line says of a step."""

    step: int
    metrics: Mapping[str, float]
    damaged: int = 0
    """How many of its parts could not be read: verl itself prints numbers only."""


def parse_step(text: str) -> StepLine | None:
    """Return what a line says, or None when it is no step line."""
    if text.lstrip()[:1] == "{":
        return _file_logger(text)
    found = _STEP.search(uncoloured(text))
    if found is None:
        return _smokes(text) if text.startswith("step ") else None
    metrics: dict[str, float] = {}
    damaged = 0
    for part in found.group(2).split(" - "):
        metric = _METRIC.match(part.strip())
        if metric is None:
            damaged += 1
        else:
            metrics[metric["name"]] = _number(metric["numpy"] or metric["plain"])
    return StepLine(int(found.group(1)), metrics, damaged) if metrics else None


def _smokes(text: str) -> StepLine | None:
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
    # orjson writes what is not a finite number as null.
    if value is None:
        return math.nan
    # Python does not make a float of an integer that is too large for one.
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
    """The job went on from an earlier step: it was started again from a checkpoint, or from the beginning."""

    after: int
    """The last step before it."""
    to: int
    """The first step after it."""


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """What a log says of a training, step by step."""

    source: str
    steps: Mapping[int, Mapping[str, float]]
    """By number, in order. A step that was run twice has what the later run says."""
    last: int
    """The step that was logged last. It is not the highest one while a job that went back catches up."""
    restarts: tuple[Restart, ...] = ()
    left_over: tuple[int, ...] = ()
    """Steps of an earlier run that the later ones have not reached again."""
    damaged: int = 0
    """Parts of step lines that could not be read."""
    cut: bool = False
    """The log ends within a line, whose last value may not be whole."""
    simulated: bool = False
    """verl-npu said in the log that the NPUs were virtual."""

    def series(self, *names: str) -> dict[int, float]:
        """Return one metric by step; of several names the first that a step has."""
        found = {}
        for step, metrics in self.steps.items():
            for name in names:
                if name in metrics:
                    found[step] = metrics[name]
                    break
        return found

    def gaps(self) -> list[tuple[int, int]]:
        """Return the first and the last of each row of steps that are missing between others."""
        return [(one + 1, two - 1) for one, two in pairwise(self.steps) if two > one + 1]

    def notes(self) -> list[str]:
        """Return what a reader has to know of this log, in sentences without a full stop."""
        said = [
            _(
                "it went back from step {after} to step {to}; of a step that was run twice, the later run counts"
            ).format(after=restart.after, to=restart.to)
            for restart in self.restarts[:_SHOWN]
        ]
        if len(self.restarts) > _SHOWN:
            more = len(self.restarts) - _SHOWN
            text = ngettext("it went back {count} more time", "it went back {count} more times", more)
            said.append(text.format(count=more))
        if self.left_over:
            said.append(
                _("{steps} of an earlier run, and no later run has come so far").format(steps=_steps(self.left_over))
            )
        if self.gaps():
            gaps = self.gaps()
            left = len(gaps) - _SHOWN
            more_rows = ngettext(" and {count} more row", " and {count} more rows", left) if left > 0 else ""
            rows = _(", ").join(_span(first, final) for first, final in gaps[:_SHOWN])
            said.append(_("it has no line of step {rows}{more}").format(rows=rows, more=more_rows.format(count=left)))
        if self.damaged:
            said.append(
                _("{damaged} values in its step lines are damaged and were left out").format(damaged=self.damaged)
            )
        if self.cut:
            said.append(_("its last line is cut off, and the value there was left out"))
        return said


@dataclass(slots=True)
class Assembly:
    """A log in the making: what its lines have said so far."""

    _steps: dict[int, dict[str, float]] = field(default_factory=dict)
    _run_of: dict[int, int] = field(default_factory=dict)
    _latest: dict[str, int] = field(default_factory=dict)
    """The step at which each metric was logged last: training and validation of one step have a line each, and
    asynchronous trainers log a validation when later steps are already there."""
    _restarts: list[Restart] = field(default_factory=list)
    _damaged: int = 0
    _last: int = 0
    cut: bool = False
    simulated: bool = False

    def add(self, line: StepLine) -> None:
        """Take in the next line; one that repeats what is known, as a worker's file does the driver's, is no news."""
        known = self._steps.get(line.step, {})
        this_run = self._run_of.get(line.step) == len(self._restarts)
        if this_run and all(_same(known.get(name), value) for name, value in line.metrics.items()):
            return
        if any(self._latest.get(name, -1) >= line.step for name in line.metrics):
            self._restarts.append(Restart(self._last, line.step))
            self._latest.clear()
            self._last = line.step
            this_run = False
        if not this_run and not known.keys().isdisjoint(line.metrics):
            # Nothing of the earlier run's may stand among the later one's.
            known.clear()
        self._steps.setdefault(line.step, {}).update(line.metrics)
        self._run_of[line.step] = len(self._restarts)
        self._latest.update(dict.fromkeys(line.metrics, line.step))
        self._last = max(self._last, line.step)
        self._damaged += line.damaged

    def log(self, source: str) -> TrainingLog:
        """Return what is known now."""
        return TrainingLog(
            source=source,
            steps={step: dict(self._steps[step]) for step in sorted(self._steps)},
            last=self._last,
            restarts=tuple(self._restarts),
            left_over=tuple(step for step in sorted(self._steps) if step > self._last),
            damaged=self._damaged,
            cut=self.cut,
            simulated=self.simulated,
        )


def spans(steps: Iterable[int]) -> str:
    """Return steps as a person writes them: `1 to 4, 7`."""
    rows: list[list[int]] = []
    for step in sorted(steps):
        if rows and step == rows[-1][1] + 1:
            rows[-1][1] = step
        else:
            rows.append([step, step])
    return _(", ").join(_span(first, final) for first, final in rows)


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
    """Return the event files of one training: `path` itself, or those in the folder, the oldest first."""
    if path.is_file():
        return [path]
    # os.walk passes over a folder that vanishes meanwhile, where rglob raises; a job cleans up while it is watched.
    files = (Path(folder, name) for folder, _unused, names in os.walk(path) for name in names if _EVENT_FILE in name)
    found = sorted(file for file in files if file.is_file())
    folders = sorted({str(file.parent) for file in found})
    if len(folders) != 1:
        raise TrainingLogError(
            subject=str(path),
            expected=_("the folder of one training's TensorBoard files (events.out.tfevents.…)"),
            found=_("those of {count}: {folders}").format(count=len(folders), folders=_(", ").join(folders))
            if folders
            else _("none"),
            fix=_("give the folder that directly holds them"),
        )
    # Their names begin with the time at which they were opened.
    return sorted(found, key=lambda file: file.name)


def _events(files: Sequence[Path]) -> Iterator[StepLine]:
    """Yield what each event says of a step, in the order in which they were written."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise TrainingLogError(
            subject=str(files[0]),
            expected=_("the package tensorboard, which reads TensorBoard's files"),
            found=_("none that can be imported: {error}").format(error=error),
            fix=_("pip install tensorboard, or give the job's console log"),
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
    """Cuts what is read of a file into lines, and leaves out those that are too long."""

    def __init__(self) -> None:
        self.rest = b""
        """A last line without an end."""
        self._skips = False

    def lines(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in the next chunk."""
        if self._skips:
            _unused, end, chunk = chunk.partition(b"\n")
            self._skips = not end
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        if len(self.rest) > _LONGEST_LINE:
            self.rest, self._skips = b"", True
        return [line for line in lines if len(line) <= _LONGEST_LINE]


class Follower(ABC):
    """Reads what is new in a log each time it is asked to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._assembly = Assembly()

    @abstractmethod
    def poll(self) -> bool:
        """Read on; return whether anything was new.

        Raises:
            TrainingLogError: it is no log, or cannot be read.
        """

    def log(self) -> TrainingLog:
        """Return what is known now."""
        return self._assembly.log(str(self.path))

    def finish(self) -> TrainingLog:
        """Return all of a log that does not grow any more."""
        return self.log()


class _Lines(Follower):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._offset = 0
        self._splitter = _Splitter()

    def poll(self) -> bool:
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    # The job was started again with the same file.
                    self._offset, self._splitter, self._assembly = 0, _Splitter(), Assembly()
                file.seek(self._offset)
                return self._take(iter(lambda: file.read(_CHUNK), b""))
        except OSError as error:
            raise _unreadable(self.path, error.strerror or str(error)) from error

    def _take(self, chunks: Iterator[bytes]) -> bool:
        before = self._offset
        for chunk in chunks:
            if self._offset == 0 and b"\0" in chunk[:4096]:
                raise _unreadable(self.path, _("a binary file"))
            self._offset += len(chunk)
            for line in self._splitter.lines(chunk):
                self._add(line)
        return self._offset > before

    def _add(self, raw: bytes) -> None:
        if _SAYS_SIMULATED in raw and _OURS in raw:
            self._assembly.simulated = True
        if b"step" in raw:
            line = parse_step(raw.decode(errors="replace"))
            if line is not None:
                self._assembly.add(line)

    def finish(self) -> TrainingLog:
        # Of a last line that is cut off, what it says for sure.
        text = self._splitter.rest.decode(errors="replace")
        self._splitter = _Splitter()
        whole = parse_step(text)
        if text.lstrip().startswith("{"):
            self._assembly.cut = whole is None
        elif whole is not None:
            # The last value may have had more digits.
            self._assembly.cut = True
            whole = parse_step(text.rpartition(" - ")[0])
        if whole is not None:
            self._assembly.add(whole)
        return self.log()


class _Events(Follower):
    """All of TensorBoard's files are read anew if one has grown: they are small, and its reader does not go on."""

    _size = -1

    def poll(self) -> bool:
        files = _event_files(self.path)
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
    """Return a reader of a log that exists.

    Raises:
        TrainingLogError: there is none.
    """
    if not path.exists():
        raise _unreadable(path, _("no such file"))
    return _Events(path) if path.is_dir() or _EVENT_FILE in path.name else _Lines(path)


def read(path: Path) -> TrainingLog:
    """Return all that a log says, of which no more is to come.

    Raises:
        TrainingLogError: it is no log, cannot be read, or has no step.
    """
    follower = follow(path)
    follower.poll()
    log = follower.finish()
    if not log.steps:
        raise _unreadable(path, _("no step in it"))
    return log


def _unreadable(path: Path, found: str) -> TrainingLogError:
    return TrainingLogError(
        subject=str(path),
        expected=_(
            "a log of a training with verl: its console's (lines `step:1 - …`), its file logger's, or TensorBoard's"
        ),
        found=found,
        fix=_(
            "wait for its first step (`verl-npu doctor --hang` says whether the job goes on), or give the file that "
            "the job's output went to, or the folder of its TensorBoard files"
        ),
    )


class Steps:
    """The steps seen so far in a set of growing files.

    Ray forwards the trainer's lines to the driver and may lose the last ones, so its own worker files are read too:
    a step found twice is one step.
    """

    def __init__(self, files: Callable[[], Iterable[Path]]) -> None:
        self._files = files
        self._read: dict[Path, int] = {}
        self._splitters: dict[Path, _Splitter] = {}
        self.by_step: dict[int, dict[str, float]] = {}

    def poll(self) -> list[int]:
        """Read what is new; return the new steps in order."""
        new = []
        for path in self._files():
            splitter = self._splitters.setdefault(path, _Splitter())
            for raw in self._lines(path, splitter):
                text = raw.decode(errors="replace")
                line = parse_step(text)
                if line is None:
                    continue
                if line.step not in self.by_step:
                    new.append(line.step)
                # Training and validation of one step have a line each.
                self.by_step[line.step] = {**line.metrics, **self.by_step.get(line.step, {})}
        return sorted(new)

    def _lines(self, path: Path, splitter: _Splitter) -> Iterator[bytes]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            while chunk := file.read(_CHUNK):
                self._read[path] = file.tell()
                yield from splitter.lines(chunk)

    def series(self, metric: str) -> list[float]:
        """Return one metric by step, as far as it has no gap from step 1 on."""
        values = []
        step = 1
        while metric in self.by_step.get(step, {}):
            values.append(self.by_step[step][metric])
            step += 1
        return values
