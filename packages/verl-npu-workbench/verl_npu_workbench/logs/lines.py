"""Strips the prefixes of Ray, torchrun, vLLM, and terminals from the lines of a log, and keeps the facts that the
prefixes contain.

Several processes write to one log, line by line. Ray puts `(WorkerDict pid=1, ip=10.0.0.1)` in front of each line,
torch puts `[rank1]:`, and vLLM puts a level, a time, and a source location. Colours are added for terminals. CANN
writes its own log, the plog. The rest of each line is matched against the rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TextIO

from verl_npu.language import gettext as _


# A log has millions of lines, and tuples take a third of the time of dataclasses.
class Process(NamedTuple):
    """A process as a log describes it. Unknown fields are empty."""

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
        """Return a copy of this process in which empty fields are filled from `other`."""
        return Process(*(mine or others for mine, others in zip(self, other, strict=True)))


DRIVER = Process(name=_("the driver"))
"""The process that starts the job. Its lines have no prefix."""


class Line(NamedTuple):
    """A line of a log without its prefixes."""

    number: int
    process: Process
    text: str
    ordinary: bool = False
    """True if a logger wrote the line at the level of information or warning."""
    engine: bool = False
    """True if vLLM's logger wrote the line."""


_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""Control sequences for a terminal: colours and window titles."""
_PLAIN = "\x1b[0m"
"""The control sequence that ends the colour of a prefix."""
_RAY = re.compile(r"\((?:(?P<name>[A-Za-z_][\w. \[\]:-]*?) )?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[^)]+))?\) ?")
_DAEMON = re.compile(r"\((?P<name>raylet|autoscaler|gcs_server|scheduler)(?:, ip=(?P<ip>[^)]+)| [^)]*)?\) ?")
_RANK = re.compile(r"\[(?:rank|default)(?P<rank>\d+)\]: ?")
_WORKER = re.compile(r"(?P<name>(?:worker|node)-\d+): ")
"""The prefix that DeepSpeed's launcher adds. It names the host."""
_LOGGER = re.compile(
    r"(?P<level>ERROR|CRITICAL|WARNING|INFO|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+\.py:\d+\]? ?"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\]\[[\w.]+\]\[(?P<hydra>[A-Z]+)\] - "
)
"""The prefixes that vLLM's loggers and Hydra's logger add."""
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*Z (?=\S)")
"""The time stamp that Docker and Kubernetes add before each line."""
_CLOSED = {"(": ")", "[": "]:", "w": ":", "n": ":"}
"""From the first character of a prefix that names a process to the characters that end it. A blank may follow."""
_LONGEST_PREFIX = 1000
_FIRST = frozenset("([wnECWID0123456789")
"""The possible first characters of a prefix."""
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_PLOG = re.compile(r"\[(?P<level>ERROR|WARNING|INFO|DEBUG|EVENT|TRACE)\] [A-Z_]+\((?P<pid>\d+),(?P<name>[^)]*)\):")
_ORDINARY = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S*\s+(?:\S+ )?(?:- )?\[?(?:INFO|WARNING|DEBUG)\b|(?:INFO|WARNING|DEBUG)[: ]"
)
_FIRST_ORDINARY = frozenset("0123456789IWD")
_LONGEST = 1 << 14
"""The maximum number of characters of a line that are kept. The important ones are at its beginning."""
_CHUNK = 1 << 18
_LOW = ("INFO", "WARNING", "DEBUG", "EVENT", "TRACE")
_RAY_FILE = re.compile(r"(?:worker|python-core-worker)-\w+(?:-\w+)?[-_](?P<pid>\d+)\.(?:out|err|log)$")
_PLOG_FILE = re.compile(r"(?:plog|device)-(?P<pid>\d+)_\d+\.log$")


def uncoloured(text: str) -> str:
    """Return the text without terminal control sequences."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def parts_of(stream: TextIO) -> Iterator[str]:
    """Yield the lines of a log, cut to a maximum length so that an endless line does not fill the memory."""
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
    """Yield the lines of a log without their prefixes. Lines without a prefix belong to `process`."""
    for number, raw in enumerate(source, 1):
        yield clean(raw, number, process)


def process_of_file(path: Path) -> Process:
    """Return the process that is identified by the name of a Ray or CANN log file. For other files, return the
    driver."""
    found = _RAY_FILE.match(path.name)
    if found:
        return Process(name="worker", pid=found["pid"])
    found = _PLOG_FILE.match(path.name)
    return Process(pid=found["pid"]) if found else DRIVER


@lru_cache(maxsize=1 << 12)
def _named(prefix: str, process: Process) -> tuple[int, Process] | None:
    """Return the length of a prefix and the process that the prefix names, or None if the text is not a prefix. The
    result is cached, because nearly all lines of a log have one of a few prefixes."""
    if prefix[0] == "(":
        found = _RAY.match(prefix) or _DAEMON.match(prefix)
    else:
        found = _RANK.match(prefix) or _WORKER.match(prefix)
    if found is None:
        return None
    known = {key: value for key, value in found.groupdict().items() if value}
    # The innermost prefix names the process itself; the outer ones belong to processes that pass its lines on.
    alone = "pid" in known or "name" in known or process == DRIVER
    return found.end(), Process(**known) if alone else process._replace(**known)


@lru_cache(maxsize=1 << 12)
def _named_in_colour(prefix: str, process: Process) -> Process | None:
    """Return the process that a coloured Ray prefix names, or None if the text is not such a prefix."""
    plain = uncoloured(prefix)
    named = _named(plain, process) if plain.startswith("(") else None
    return named[1] if named and named[0] == len(plain) else None


def clean(raw: str, number: int = 0, process: Process = DRIVER) -> Line:
    """Return a line of a log without colours and prefixes."""
    text = raw.rstrip("\r\n")
    if "\x1b" in text:
        # Nearly all coloured lines have one of a few Ray prefixes, and no colour after it.
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
