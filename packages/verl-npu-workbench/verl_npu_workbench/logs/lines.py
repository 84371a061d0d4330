"""One line of a log: what Ray, torchrun, vLLM and terminals put around it, taken off and kept as facts.

Several processes write to one log, line by line. Ray puts `(WorkerDict pid=1, ip=10.0.0.1)` in front of each line,
torch `[rank1]:`, vLLM a level, a time and a place in its source, a terminal colours; CANN writes a log of its own, the
plog. What is left after all that is compared with the rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TextIO

from verl_npu.language import gettext as _


# A log has millions of lines: tuples are made and compared in a third of the time that dataclasses take.
class Process(NamedTuple):
    """A process as far as the log names it; what is not known is empty."""

    name: str = ""
    pid: str = ""
    ip: str = ""
    rank: str = ""
    device: str = ""

    def __str__(self) -> str:
        facts = [
            _("pid {pid}").format(pid=self.pid) if self.pid else "",
            _("rank {rank}").format(rank=self.rank) if self.rank else "",
        ]
        facts += [
            _("NPU {device}").format(device=self.device) if self.device else "",
            _("host {ip}").format(ip=self.ip) if self.ip else "",
        ]
        known = _(", ").join(fact for fact in facts if fact)
        if not self.name:
            return known or _("the process that wrote the log")
        return _("{name} ({known})").format(name=self.name, known=known) if known else self.name

    def completed(self, other: Process) -> Process:
        """Return this process with what another description of it says besides."""
        return Process(*(mine or others for mine, others in zip(self, other, strict=True)))


DRIVER = Process(name=_("the driver"))
"""The process that starts the job: its lines have no prefix."""


class Line(NamedTuple):
    """A line without what stands around it."""

    number: int
    process: Process
    text: str
    ordinary: bool = False
    """A logger wrote it as information or as a warning."""
    engine: bool = False
    """vLLM's logger wrote it."""


_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""What a terminal is told, not its reader: colours, and titles of windows."""
_PLAIN = "\x1b[0m"
"""With what the colour of a prefix ends."""
_RAY = re.compile(r"\((?:(?P<name>[A-Za-z_][\w. \[\]:-]*?) )?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[^)]+))?\) ?")
_DAEMON = re.compile(r"\((?P<name>raylet|autoscaler|gcs_server|scheduler)(?:, ip=(?P<ip>[^)]+)| [^)]*)?\) ?")
_RANK = re.compile(r"\[(?:rank|default)(?P<rank>\d+)\]: ?")
_WORKER = re.compile(r"(?P<name>(?:worker|node)-\d+): ")
"""DeepSpeed's launcher names the host."""
_LOGGER = re.compile(
    r"(?P<level>ERROR|CRITICAL|WARNING|INFO|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+\.py:\d+\]? ?"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\]\[[\w.]+\]\[(?P<hydra>[A-Z]+)\] - "
)
"""vLLM's loggers, and Hydra's."""
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*Z (?=\S)")
"""What Docker and Kubernetes put before each line."""
_CLOSED = {"(": ")", "[": "]:", "w": ":", "n": ":"}
"""With what a prefix that names a process begins and ends; a blank may follow."""
_LONGEST_PREFIX = 1000
_FIRST = frozenset("([wnECWID0123456789")
"""With what a prefix can begin."""
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_PLOG = re.compile(r"\[(?P<level>ERROR|WARNING|INFO|DEBUG|EVENT|TRACE)\] [A-Z_]+\((?P<pid>\d+),(?P<name>[^)]*)\):")
_ORDINARY = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S*\s+(?:\S+ )?(?:- )?\[?(?:INFO|WARNING|DEBUG)\b|(?:INFO|WARNING|DEBUG)[: ]"
)
_FIRST_ORDINARY = frozenset("0123456789IWD")
_LONGEST = 1 << 14
"""Characters of a line that are read: what tells what happened stands at its beginning."""
_CHUNK = 1 << 18
_LOW = ("INFO", "WARNING", "DEBUG", "EVENT", "TRACE")
_RAY_FILE = re.compile(r"(?:worker|python-core-worker)-\w+(?:-\w+)?[-_](?P<pid>\d+)\.(?:out|err|log)$")
_PLOG_FILE = re.compile(r"(?:plog|device)-(?P<pid>\d+)_\d+\.log$")


def uncoloured(text: str) -> str:
    """Return a text without what only a terminal is told."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def parts_of(stream: TextIO) -> Iterator[str]:
    """Yield the lines of a log, of a long one its beginning: it need not fit into the memory, nor ever end."""
    rest = ""
    while chunk := stream.read(_CHUNK):
        *lines, last = chunk.split("\n")
        if lines:
            lines[0] = rest + lines[0]
            rest = ""
        for line in lines:
            yield line if len(line) < _LONGEST else line[:_LONGEST]
        rest = (rest + last)[:_LONGEST]
    if rest:
        yield rest


def lines_of(source: Iterable[str], process: Process = DRIVER) -> Iterator[Line]:
    """Yield the lines of a log; those without a process of their own are of `process`."""
    for number, raw in enumerate(source, 1):
        yield clean(raw, number, process)


def process_of_file(path: Path) -> Process:
    """Return the process that a file of Ray's or CANN's is named after, else the one that starts the job."""
    found = _RAY_FILE.match(path.name)
    if found:
        return Process(name="worker", pid=found["pid"])
    found = _PLOG_FILE.match(path.name)
    return Process(pid=found["pid"]) if found else DRIVER


@lru_cache(maxsize=1 << 12)
def _named(prefix: str, process: Process) -> tuple[int, Process] | None:
    """Return the length of a prefix and the process that it names; None if it is none.

    Nearly all lines of a log have one of a few.
    """
    if prefix[0] == "(":
        found = _RAY.match(prefix) or _DAEMON.match(prefix)
    else:
        found = _RANK.match(prefix) or _WORKER.match(prefix)
    if found is None:
        return None
    known = {key: value for key, value in found.groupdict().items() if value}
    # The innermost prefix is the process itself, the others only pass its lines on.
    alone = "pid" in known or "name" in known or process == DRIVER
    return found.end(), Process(**known) if alone else process._replace(**known)


@lru_cache(maxsize=1 << 12)
def _named_in_colour(prefix: str, process: Process) -> Process | None:
    """Return the process that a coloured prefix of Ray's names; None if it is something else."""
    plain = uncoloured(prefix)
    named = _named(plain, process) if plain.startswith("(") else None
    return named[1] if named and named[0] == len(plain) else None


def clean(raw: str, number: int = 0, process: Process = DRIVER) -> Line:
    """Return a line of a log without colours and prefixes."""
    text = raw.rstrip("\r\n")
    if "\x1b" in text:
        # Nearly all coloured lines have a prefix of Ray's, which is one of a few, and no colour behind it.
        behind = text.find(_PLAIN, 0, _LONGEST_PREFIX) + len(_PLAIN)
        named_so = _named_in_colour(text[:behind], process) if behind >= len(_PLAIN) else None
        if named_so:
            process = named_so
            text = text[behind + text.startswith(" ", behind) :]
        text = uncoloured(text).rstrip("\r\n")
    if "\r" in text:
        text = text.replace("\r", "")
    if "[repeated " in text:
        text = _REPEATED.sub("", text)
    ordinary = engine = False
    at = 0
    while True:
        # Most lines have no prefix, and logs have millions of them.
        first = text[at : at + 1]
        if first not in _FIRST:
            break
        named = None
        if first in _CLOSED:
            closing = _CLOSED[first]
            closed = text.find(closing, at, at + _LONGEST_PREFIX)
            named = _named(text[at : closed + len(closing) + 1], process) if closed > 0 else None
        if named:
            length, process = named
            at += length
            continue
        found = _STAMP.match(text, at) if first.isdigit() else _LOGGER.match(text, at)
        if found is None:
            break
        if found.re is _LOGGER:
            ordinary = ordinary or (found["level"] or found["hydra"]) in _LOW
            engine = engine or found["level"] is not None
        at = found.end()
    text = text[at:]
    plog = _PLOG.match(text) if text.startswith("[") else None
    if plog:
        process = Process(name=process.name, pid=plog["pid"], ip=process.ip)
        ordinary = plog["level"] in _LOW
    if not ordinary and text[:1] in _FIRST_ORDINARY:
        ordinary = _ORDINARY.match(text) is not None
    return Line(number, process, text, ordinary, engine)
