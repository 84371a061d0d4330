"""The errors in a log: tracebacks, CANN's messages, and single lines that report an error.

The lines of several processes may be mixed, but the lines of each process are in order. If Ray passes a traceback on
to another process, the traceback still names the process that raised it. A message of torch_npu names its process,
too.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from verl_npu.language import gettext as _

from ..logs.lines import DRIVER, Line, Process

MOST_LINES = 60
"""The maximum number of lines of one error message that are kept."""
_LONGEST_ERROR = 1000
"""The maximum number of characters of the line that names an error. Lines of a binary file may be extremely long."""
_BATCH = 256
"""The number of lines that are searched as one batch. Only if the batch matches is each of its lines searched."""
_FREE_LINES = 8
"""The maximum number of lines of unrecognized form in one message. The text of an exception may have any form, so a
limit is needed."""


class Kind(enum.Enum):
    """How an error appears in the log."""

    TRACEBACK = "traceback"
    CANN = "CANN"
    BARE = "bare"
    """Only the last line of a traceback."""
    LINE = "line"
    """One line that matches a rule without a traceback, or that only looks like an error."""


@dataclass(slots=True)
class Event:
    """One error message from one process."""

    kind: Kind
    process: Process
    line: int
    """The line number in the log; 0 if unknown."""
    log: str
    message: list[str] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)
    passed_on: bool = False
    """True if `process` raised the error, but another process wrote it to the log."""
    engine: bool = False
    """True if the rollout engine's logger wrote it."""
    last: int = 0

    @property
    def text(self) -> str:
        """The message, without the source lines that Python quotes in a traceback."""
        return "\n".join(self.message)

    @property
    def error(self) -> str:
        """The line that names the error. In a chain of exceptions, this is the line of the first exception."""
        named = (line for line in self.message if "ray::" not in line and line.strip())
        return next(named, self.message[0] if self.message else "").strip()[:_LONGEST_ERROR]

    @property
    def doing(self) -> str:
        """The phase that verl was in, according to the functions on the stack, or an empty string if the log does not
        show the phase."""
        said = "\n".join((*self.frames, *(line for line in self.message if "ray::" in line)))
        places = [(place, words) for pattern, words in _DOING if (place := _latest(pattern, said))]
        return max(places, default=(0, ""))[1]

    @property
    def moment(self) -> str:
        """The time of the error, in the timestamp format of CANN and torch_npu, or an empty string if the message has
        no timestamp."""
        found = _MOMENT.search(self.text)
        return found[0] if found else ""


_DOING = (
    (
        re.compile(
            r"(?:in |[._])(?:init_workers|init_model|init_model_config|_build_rollout|_build_model_optimizer)\b"
        ),
        _("building the models"),
    ),
    (re.compile(r"(?:in |[._])(?:generate_sequences|generate|_run_agent_loop)\b"), _("generating answers")),
    (
        re.compile(r"(?:in |[._])(?:compute_log_prob|compute_ref_log_prob|_compute_old_log_prob)\b"),
        _("computing log-probabilities"),
    ),
    (re.compile(r"(?:in |[._])(?:compute_values|infer_batch)\b"), _("computing values")),
    (
        re.compile(r"(?:in |[._])(?:update_actor|update_policy|train_mini_batch|train_batch)\b"),
        _("updating the policy"),
    ),
    (re.compile(r"(?:in |[._])(?:update_critic)\b"), _("updating the critic")),
    (
        re.compile(r"(?:in |[._])(?:update_weights|sync_rollout_weights|load_weights|rollout_mode|wake_up)\b"),
        _("sending weights to the engine"),
    ),
    (re.compile(r"(?:in |[._])(?:_validate|val_reward_fn)\b"), "validating"),
    (
        re.compile(r"(?:in |[._])(?:compute_reward|compute_score|reward_fn|default_compute_score|run_single)\b"),
        _("computing rewards"),
    ),
    (re.compile(r"(?:in |[._])(?:compute_advantage)\b"), _("computing advantages")),
    (re.compile(r"(?:in |[._])(?:_?save_checkpoint)\b"), _("saving a checkpoint")),
    (re.compile(r"(?:in |[._])(?:_?load_checkpoint)\b"), _("loading a checkpoint")),
    (
        re.compile(r"(?:in |[._])(?:_create_dataloader|create_rl_dataset|__getitem__|_read_files_and_tokenize)\b"),
        _("reading the data"),
    ),
)


def _latest(pattern: re.Pattern[str], text: str) -> int:
    """Return the position at which the last match ends, or 0 if there is no match."""
    return max((found.end() for found in pattern.finditer(text)), default=0)


_START = re.compile(r"Traceback \(most recent call last\):\s*$")
_CHAIN = re.compile(r"(?:The above exception was the direct cause|During handling of the above exception)")
_FRAME = re.compile(r'\s*File "[^"]+", line \d+, in \S+')
_RAY = re.compile(
    r"ray::(?:(?P<name>[\w.:<>]{1,300})\(\)|(?P<other>\S{1,300})) \(pid=(?P<pid>\d+)(?:, ip=(?P<ip>[^,)]*))?"
)
_BARE = re.compile(
    r"(?:E {1,12}|[*>\-\d. ]{0,6})[`\"']?[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Interrupt|StopIteration)"
    r"(?:\(\w{1,60}\))?(?:[:\uff1a`]|$)"
)
"""The line of an exception, as Python and pytest print it or as a person quotes it."""
_LOOKS_LIKE_AN_ERROR = re.compile(
    r"\b[A-Z][A-Za-z]{1,60}(?:Error|Exception)\b|\[[EF]\d{3,8}[ \]]|^[EF]\d{4,8} [\d:.]{5,20} |^F\d{8} "
    r"|(?:^|[\s\[|])(?:ERROR|CRITICAL|FATAL)[\s\]:|]|\bE[A-Z]\d{4}\b|\bERR\d{5}\b|^Error\b|\b[Ff]atal\b"
    r"|\bassert\b|\berror:|\berror code\b|\bexit code:? [1-9]|\bexitcode: -?[1-9]"
    r"|\bSIG(?:KILL|SEGV|BUS|ABRT|TERM)\b|\bterminate called\b|[Ss]egmentation fault|\bSegfault\b|core dumped"
    r"|\b[Kk]illed\b|\b[Bb]us error\b|\bAborted\b|undefined symbol|cannot open shared object|^No module named"
    r"|unexpected keyword argument|\bout of memory\b|\boom[-_]kill"
    r"|\u9519\u8bef|\u5f02\u5e38|\u62a5\u9519|\u5df2\u6740\u6b7b|\u5df2\u7ec8\u6b62|\u5df2\u653e\u5f03"
)
"""Lines that look like errors of Python, glog, CANN, a shell, the kernel, or a scheduler, in English or Chinese."""
_ERROR_WORDS = (
    *("rror", "ERR", "xception", "CRITICAL", "atal", "FATAL", "assert", "exit", "SIG", "terminate", "fault", "dumped"),
    *("illed", "Abort", "symbol", "cannot open", "No module", "keyword", "of memory", "oom", "[E", "[F"),
    *("EI0", "EJ0", "EL0", "EE1", "EZ1", "\u9519", "\u5f02\u5e38", "\u5df2"),
)
"""Words for a quick first test. Nearly all lines of a log contain none of these words, so no regular expression has to
run on them."""
_NO_ERROR = re.compile(
    r"error_if|[Ee]rrors?=|'[Ee]rror'|\"error\"|on_error|[Ee]rror_code|Warning: "
    r"|\b0 errors?\b|\bretry|\bRetry|--ignore|^\s{0,200}[{\[]?'\w{1,80}': |^ray init kwargs: "
)
"""Lines that only look like errors: settings that verl prints, Python's warnings, and retries."""
_MOST_LINE_EVENTS = 400
"""The maximum number of lines that are kept only because they look like an error. A log may have millions of them, and
the first ones matter most."""
_CODE = re.compile(r"(?:\bE[A-Z][0-9A-Z]\d{3}|\bE\d{5})(?:\)?: |\[PID)|\bERR\d{5} [A-Z]")
_ABOUT = re.compile(r"\(PID:(?P<pid>\d+), Device:(?P<device>-?\d+), RankID:(?P<rank>-?\d+)\)")
_DEAD = (
    re.compile(r"Worker IP address: (?P<ip>\S{1,60}) [^\n]{0,80}?Worker PID: (?P<pid>\d+)"),
    re.compile(
        r"class_name: (?P<name>\S{1,200})\n(?:[^\n]{0,200}\n){0,2}?\s{0,9}pid: (?P<pid>\d+)\n"
        r"(?:[^\n]{0,200}\n){0,2}?\s{0,9}ip: (?P<ip>\S{1,60})"
    ),
    re.compile(r"^The (?P<name>node) with node id: \w{1,99} and address: (?P<ip>\S{1,60})"),
    re.compile(
        r"^Memory on the node \(IP: (?P<ip>[^,\s]{1,60}),[^\n]{0,300}? name=(?P<name>\w{1,99})[.\w]{0,99}, "
        r"pid=(?P<pid>\d+)",
        re.MULTILINE,
    ),
    re.compile(r"^\[Rank (?P<rank>\d+)\] "),
)
"""Patterns that find the process that failed in a message that another process wrote. Ray reports dead workers in this
way, and a watchdog reports its rank."""
_FAILED_FIRST = (
    re.compile(
        r"Root Cause \(first observed failure\):\n(?:[^\n]{0,300}\n){0,4}?\s{0,9}rank {1,9}: (?P<rank>\d+) "
        r"[^\n]{0,99}\n\s{0,9}exitcode {1,9}: -?\d+ {1,9}\(pid: (?P<pid>\d+)\)"
    ),
    re.compile(r"failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: (?P<pid>\d+)\)"),
)
"""Patterns that find the rank that failed first, according to torchrun."""
_PLOG_ERROR = re.compile(r"\[ERROR\] [A-Z_]+\(\d+,")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d-\d\d:\d\d:\d\d(?:\.\d+)*")
_NPU_WORDS = re.compile(r"npu|NPU|[Aa]cl|ACL|[Hh]ccl|HCCL|OPS |\bE[A-Z]\w{4}\b|ERR\d{5}")
_NUMBERS = re.compile(r"\d+")
_ANY_NUMBER = re.compile(r"0x[0-9a-f]+|\b(?=[a-f]*\d)[0-9a-f]{6,}\b|\d+")
_MOST_EVENTS, _FEW_EVENTS, _LITTLE_TEXT = 20_000, 500, 1 << 18
"""Limits before similar errors are thinned out: the most errors while a log is read, and the most errors and
characters at its end. Every rule is tried on each error that remains."""
_MOST_ALIKE, _MOST_KINDS = 5, 500
"""The first number applies to errors that differ only in numbers: this many of the first, the last, and the earliest
are kept. The second number limits the kinds of errors: this many of the first kinds and of the last kinds are kept."""
_NATURAL = re.compile(
    r"\s|\[(?:ERROR|Error|INFO|W\d|E\d)|E[A-Z]\w{4}\b|E\d{5}|Trace[bB]ack|Solution|Possible|Exception raised"
    r"|frame #|loc\(|///|Kernel |DEVICE|launch failed|$"
)
"""Patterns for the beginning of a line that continues a message."""


_Search = Callable[[str], re.Match[str] | None]


class Reader:
    """Assembles the lines of one log into errors."""

    def __init__(self, log: str, tells: Sequence[str]) -> None:
        self.events: list[Event] = []
        self.left_out = 0
        """The number of errors that were dropped because many similar ones exist."""
        self._most = _MOST_EVENTS
        self._log = log
        self._anywhere = [(re.compile(part, re.MULTILINE).search, re.compile(part).search) for part in tells]
        """The patterns of the rules that also match outside a traceback. Each is compiled twice: for a batch of lines,
        and for a single line."""
        self._searches: list[_Search] = []
        """The single-line patterns to try on the current batch, because their multi-line form matches it. The list is
        nearly always empty."""
        self._alike: set[str] = set()
        """The lines seen so far that look like an error, with their numbers removed. They are used to skip
        repetitions."""
        self._open: dict[tuple[str, str, str], Event] = {}
        self._in_frames: set[tuple[str, str, str]] = set()
        self._chained: set[tuple[str, str, str]] = set()
        self._free: dict[tuple[str, str, str], int] = {}

    def read(self, lines: Iterable[Line]) -> list[Event]:
        """Read all lines, and return the errors in the order in which they begin."""
        source = iter(lines)
        while batch := tuple(islice(source, _BATCH)):
            together = "\n".join(line.text for line in batch)
            self._searches = [search for in_many, search in self._anywhere if in_many(together)]
            for line in batch:
                self._take(line)
            if len(self.events) > self._most:
                self._thin()
        if len(self.events) > _FEW_EVENTS or sum(len(event.text) for event in self.events) > _LITTLE_TEXT:
            self._open.clear()
            self._thin()
        for event in self.events:
            event.process = _resolved(event)
        return self.events

    def _thin(self) -> None:
        """Drop errors that have many similar ones. Keep the first ones, which may be the cause, and the last ones,
        which may have ended the job."""
        alike: dict[tuple[Kind, str, str], list[Event]] = {}
        for event in self.events:
            last = event.frames[-1] if event.frames else ""
            key = (event.kind, _ANY_NUMBER.sub("", event.text), _ANY_NUMBER.sub("", last))
            alike.setdefault(key, []).append(event)
        kinds = list(alike.values())
        kept = {id(event) for event in self._open.values()}
        for events in (*kinds[:_MOST_KINDS], *kinds[_MOST_KINDS:][-_MOST_KINDS:]):
            timed = [event for event in events if event.moment]
            earliest = [min(timed, key=lambda event: event.moment)] if timed else []
            kept.update(map(id, (*events[:_MOST_ALIKE], *events[-_MOST_ALIKE:], *earliest)))
        events = [event for event in self.events if id(event) in kept]
        self.left_out += len(self.events) - len(events)
        self.events = events
        # Processes may still be writing more errors than that.
        self._most = max(_MOST_EVENTS, 2 * len(events))

    def _matches_anywhere(self, text: str) -> bool:
        return any(search(text) for search in self._searches)

    def _take(self, line: Line) -> None:
        if line.ordinary and not self._searches and not self._open:
            return
        process = line.process
        key = (process.ip, process.pid or process.name, process.rank)
        event = self._open.get(key)
        if line.ordinary:
            # Another thread of the process may print while a traceback is being written.
            if key not in self._in_frames:
                self._open.pop(key, None)
            if self._matches_anywhere(line.text):
                self._begin(Kind.LINE, line, key, keep=False)
            return
        passed = _RAY.search(line.text) if "ray::" in line.text else None
        if "Traceback" in line.text and _START.search(line.text):
            if event is None or key not in self._chained:
                event = self._begin(Kind.TRACEBACK, line, key)
            self._in_frames.add(key)
        elif passed and not line.text.startswith("  "):
            self._pass_on(event, line, key, passed)
        elif 'File "' in line.text and _FRAME.match(line.text):
            if event is None:
                event = self._begin(Kind.TRACEBACK, line, key)
            self._in_frames.add(key)
            event.frames.append(line.text.strip())
        elif key in self._in_frames and event is not None:
            self._end_frames(event, line, key)
        elif event is not None and self._continues(event, line, key):
            return
        else:
            self._alone(line, key)

    def _begin(self, kind: Kind, line: Line, key: tuple[str, str, str], keep: bool = True) -> Event:
        event = Event(kind, line.process, line.number, self._log, engine=line.engine, last=line.number)
        if kind is not Kind.TRACEBACK:
            event.message.append(line.text.rstrip())
        self.events.append(event)
        self._in_frames.discard(key)
        self._chained.discard(key)
        self._free[key] = 0
        if keep:
            self._open[key] = event
        else:
            self._open.pop(key, None)
        return event

    def _pass_on(self, event: Event | None, line: Line, key: tuple[str, str, str], found: re.Match[str]) -> None:
        if event is None or key not in self._in_frames:
            event = self._begin(Kind.TRACEBACK, line, key)
        # The last process that is named raised the error.
        name = (found["name"] or found["other"] or "").partition(".")[0]
        event.process = Process(name=name, pid=found["pid"], ip=(found["ip"] or "").strip())
        event.passed_on = True
        event.message.append(line.text.rstrip())
        event.last = line.number
        self._in_frames.add(key)

    def _end_frames(self, event: Event, line: Line, key: tuple[str, str, str]) -> None:
        said = line.text.strip()
        if not said or (line.text.startswith("  ") and not _BARE.match(said)) or set(said) <= set("^~ "):
            return
        event.message.append(line.text.rstrip())
        event.last = line.number
        self._in_frames.discard(key)
        self._chained.discard(key)

    def _continues(self, event: Event, line: Line, key: tuple[str, str, str]) -> bool:
        if _CHAIN.match(line.text):
            self._chained.add(key)
            return True
        free = not _NATURAL.match(line.text)
        self._free[key] += free
        # An NPU's lines belong to torch_npu's exception; the line with the process follows any exception.
        of_npu = _ABOUT.search(line.text) or _NPU_WORDS.search(event.text)
        fresh = (_CODE.search(line.text) and not of_npu) or (free and self._matches_anywhere(line.text))
        if len(event.message) >= MOST_LINES or self._free[key] > _FREE_LINES or fresh:
            self._open.pop(key)
            return False
        event.message.append(line.text.rstrip())
        event.last = line.number
        return True

    def _alone(self, line: Line, key: tuple[str, str, str]) -> None:
        if _PLOG_ERROR.match(line.text) or ("E" in line.text and _CODE.search(line.text)):
            self._begin(Kind.CANN, line, key)
        elif _BARE.match(line.text):
            self._begin(Kind.BARE, line, key)
        elif self._matches_anywhere(line.text):
            self._begin(Kind.LINE, line, key, keep=False)
        elif len(self._alike) < _MOST_LINE_EVENTS and looks_like_an_error(line.text):
            alike = _NUMBERS.sub("", line.text)
            if alike not in self._alike:
                self._alike.add(alike)
                self._begin(Kind.LINE, line, key, keep=False)


def looks_like_an_error(text: str) -> bool:
    """Return whether a single line looks like an error. Such a line can still be harmless."""
    if text[:1] not in ("E", "F"):
        for word in _ERROR_WORDS:
            if word in text:
                break
        else:
            return False
    return _LOOKS_LIKE_AN_ERROR.search(text) is not None and _NO_ERROR.search(text) is None


def failed_first(events: Sequence[Event]) -> tuple[Event, Process] | None:
    """Return the event in which torchrun names the rank that failed first, together with that rank, or None if
    torchrun names no rank."""
    for pattern in _FAILED_FIRST:
        for event in events:
            found = pattern.search(event.text)
            if found:
                return event, Process(**found.groupdict())
    return None


def _resolved(event: Event) -> Process:
    """Return the process of an error, completed with the facts from torch_npu's line about the process."""
    found = _ABOUT.search(event.text)
    if found is None:
        dead = next((found for pattern in _DEAD if (found := pattern.search(event.text))), None)
        if dead:
            return Process(**dead.groupdict())
        # The autoscaler only reports that a request of the job cannot be met.
        return DRIVER if event.process.name == "autoscaler" else event.process
    said = Process(pid=found["pid"], device=found["device"], rank=found["rank"])
    said = Process(pid=said.pid, device=said.device.replace("-1", ""), rank=said.rank.replace("-1", ""))
    if event.process.pid in ("", said.pid):
        return event.process.completed(said)
    # The text was passed on without Ray's prefix.
    return Process(pid=said.pid, device=said.device, rank=said.rank)
