"""Estimates the offsets between the clocks of a job's hosts, from the times in a log that all hosts write to.

Lines are in the order in which they arrived. If another host's line follows a line of the logging host, it was
written at the same time or later. The other clock is therefore ahead by at most the difference between the two times.
If the order is reversed, the other clock is ahead by at least the difference. The true offset is in between.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

_STAMP = re.compile(
    r"[A-Z]{0,8}:?\[?(?P<day>\d{4}-\d\d-\d\d)[-T ](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<parts>\d{1,6}(?:\.\d{3})?))?"
)
_APART = 2.0
"""The smallest offset, in seconds, that counts. A smaller one may only be the delay of a line."""
_BACK = 60.0
"""The longest delay of a line, in seconds. If times go back further, the clock was set."""


def seconds(text: str) -> float | None:
    """Return the time at the beginning of a text, in seconds, or None if the text does not begin with a time."""
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
    """The host of each process ID, from Ray's prefixes."""
    reset: set[str] = field(default_factory=set)
    """The hosts whose clocks were set back during the log. Their times do not show the order of events."""
    _last: dict[str, float] = field(default_factory=dict)
    _own: float | None = None
    """The time of the logging host's last line."""
    _before: dict[str, float] = field(default_factory=dict)
    """The time of each other host's last line since the logging host's last line."""
    _most: dict[str, float] = field(default_factory=dict)
    _least: dict[str, float] = field(default_factory=dict)

    def note(self, host: str, pid: str, text: str) -> None:
        """Record the time of a line. `host` is empty for the logging host."""
        if host and pid:
            self.hosts[pid] = host
        # Nearly all lines begin without a time.
        now = seconds(text) if "-" in text[:16] else None
        if now is None:
            return
        if now < self._last.get(host, now) - _BACK:
            self.reset.add(host)
        self._last[host] = now
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
        """Return the number of seconds that a host's clock is ahead of the logging host's clock, or 0 if the log shows
        no offset."""
        if host not in self._most or host not in self._least:
            return 0.0
        least, most = sorted((self._least[host], self._most[host]))
        return (least + most) / 2 if least > _APART or most < -_APART else 0.0
