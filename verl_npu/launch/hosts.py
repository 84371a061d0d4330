"""Lists of hosts: as SLURM compresses them, as a hostfile has them, as a user types them."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import LaunchError

__all__ = ["expand", "of_file", "of_text"]

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MOST = 65536
"""More hosts than this are a slip of the pen."""


def of_text(text: str) -> tuple[str, ...]:
    """Return the hosts of `a,b,c`."""
    return _distinct([part.strip() for part in text.split(",") if part.strip()], text)


def of_file(path: Path) -> tuple[str, ...]:
    """Return the hosts of a hostfile: one a line, and what follows on it (`slots=8`, `user=…`) is left out.

    Raises:
        LaunchError: it cannot be read, holds no host, or one twice.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "no text"
        raise _refused(str(path), "a file with a host on each line", found, "correct the path") from error
    words = [line.partition("#")[0].split() for line in lines]
    return _distinct([each[0].partition(":")[0] for each in words if each], str(path))


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of SLURM's `node[01-03,7],login1`, in its order.

    Raises:
        LaunchError: it cannot be read.
    """
    # A comma within brackets parts numbers, any other one parts hosts.
    parts = re.split(r",(?![^\[]*\])", text.strip())
    return _distinct([host for part in parts for host in _of_part(part.strip(), text)], text)


def _of_part(part: str, text: str) -> list[str]:
    found = _BRACKETS.search(part)
    if found is None:
        if not part or set(part) & set("[]"):
            raise _refused(text, "hosts such as node[01-03,7]", repr(part), "correct the list")
        return [part]
    hosts: list[str] = []
    for each in found[1].split(","):
        numbers = _RANGE.fullmatch(each.strip())
        if numbers is None:
            raise _refused(text, "numbers and ranges in brackets", repr(each), "correct the list")
        first, last = numbers[1], numbers[2] or numbers[1]
        if not 0 <= int(last) - int(first) < _MOST:
            raise _refused(text, "a range that counts upwards", repr(each), "correct the list")
        for number in range(int(first), int(last) + 1):
            hosts += _of_part(f"{part[: found.start()]}{number:0{len(first)}d}{part[found.end() :]}", text)
    return hosts


def _distinct(hosts: list[str], text: str) -> tuple[str, ...]:
    twice = sorted({host for host in hosts if hosts.count(host) > 1})
    if not hosts or twice:
        found = f"{', '.join(twice)} twice" if twice else "none"
        raise _refused(text or "the list of hosts", "each host once", found, "correct the list")
    return tuple(hosts)


def _refused(subject: str, expected: str, found: str, fix: str) -> LaunchError:
    return LaunchError(subject=subject, expected=expected, found=found, fix=fix)
