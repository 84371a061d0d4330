"""The ports at which the ranks of HCCL listen on a host, and whether others listen there already."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .finding import Finding, ok, skipped, warning
from .site import Site

__all__ = ["judge_ports", "read_ranges"]

_USUAL = range(60000, 60016)
"""Where HCCL listens if it is told nothing (HCCL_IF_BASE_PORT in its documentation)."""
_BASE, _RANGE = "HCCL_IF_BASE_PORT", "HCCL_HOST_SOCKET_PORT_RANGE"
_LISTENS = "0A"


def read_ranges(text: str) -> list[range]:
    """Read `60000-60050,60100`; an empty list if it cannot be read."""
    ranges = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if found is None:
            return []
        first, last = int(found[1]), int(found[2] or found[1])
        if not 1 <= first <= last <= 65535:
            return []
        ranges.append(range(first, last + 1))
    return ranges


def judge_ports(site: Site) -> Iterator[Finding]:
    """Whether the ports of HCCL on this host are free."""
    name = "hccl-ports"
    if site.virtual:
        yield skipped(name, "not needed on virtual NPUs (SIMULATED)")
        return
    asked = site.environ.get(_RANGE, "")
    if asked.strip().lower() == "auto":
        yield ok(name, "any that are free")
        return
    base = site.environ.get(_BASE, "")
    wanted = read_ranges(asked) if asked else []
    if not wanted:
        first = int(base) if base.isdecimal() and int(base) < 65520 else _USUAL.start
        wanted = [range(first, first + len(_USUAL))]
    taken = sorted(port for port in _listening(site) if any(port in each for each in wanted))
    named = ", ".join(f"{each.start}-{each.stop - 1}" for each in wanted)
    free = sum(map(len, wanted)) - len(taken)
    # A range is one to choose from; without one, each rank has its port.
    if not taken or (asked and free >= len(_USUAL)):
        yield ok(name, f"{named} free" if not taken else f"{named}, {free} of them free")
        return
    yield warning(
        name,
        f"somebody listens at {', '.join(map(str, taken[:5]))}",
        needed=f"{named} free",
        why="each rank of HCCL listens at one of these, and ends with an error if it is taken",
        fix=f"export {_RANGE}=auto  # or end what listens: ss -ltnp 'sport = :{taken[0]}'",
    )


def _listening(site: Site) -> set[int]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = site.at(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if len(columns) > 3 and columns[3] == _LISTENS:
                found.add(int(columns[1].rpartition(":")[2], 16))
    return found
