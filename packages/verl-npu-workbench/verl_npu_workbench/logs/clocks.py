"""How far the clocks of a job's hosts are apart, by the times in the lines of a log that all of them write to.

Lines are in the order in which they arrived. A line of another host that comes after one of the log's own host was
written after it, or at once: so its clock is ahead by no more than the difference of both times. A line of the log's
own host after one of the other gives the least that it is ahead by. The truth is in between.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

_STAMP = re.compile(
    r"[A-Z]{0,8}:?\[?(?P<day>\d{4}-\d\d-\d\d)[-T ](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<parts>\d{1,6}(?:\.\d{3})?))?"
)
_APART = 2.0
"""Seconds: what is less may be the way that a line takes."""


def seconds(text: str) -> float | None:
    """Return the time with which a text begins, as seconds; None if it begins with none."""
    found = _STAMP.match(text)
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(f"{found['day']} {found['time']}")
    except ValueError:
        return None
    parts = (found["parts"] or "").replace(".", "")
    return moment.timestamp() + (float(f"0.{parts}") if parts else 0.0)


@dataclass(slots=True)
class Clocks:
    """The clocks of the hosts whose lines are in one log."""

    hosts: dict[str, str] = field(default_factory=dict)
    """The host of each process number, as Ray's prefixes name it."""
    _own: float | None = None
    """The time of the last line of the log's own host."""
    _before: dict[str, float] = field(default_factory=dict)
    """The times of the other hosts' lines since the last one of the log's own host: a later one says no more."""
    _most: dict[str, float] = field(default_factory=dict)
    _least: dict[str, float] = field(default_factory=dict)

    def note(self, host: str, pid: str, text: str) -> None:
        """Take in a line of a host; that of the log itself is empty."""
        if host and pid:
            self.hosts[pid] = host
        # Nearly all lines begin with no time.
        now = seconds(text) if "-" in text[:16] else None
        if now is None:
            return
        if host:
            if self._own is not None:
                self._most[host] = min(self._most.get(host, now - self._own), now - self._own)
            self._before[host] = now
        else:
            self._own = now
            for other, then in self._before.items():
                self._least[other] = max(self._least.get(other, then - now), then - now)
            self._before.clear()

    def ahead(self, host: str) -> float:
        """How many seconds a host's clock is ahead of the log's own host; 0 if it is not shown to be apart."""
        if host not in self._most or host not in self._least:
            return 0.0
        least, most = sorted((self._least[host], self._most[host]))
        return (least + most) / 2 if least > _APART or most < -_APART else 0.0
