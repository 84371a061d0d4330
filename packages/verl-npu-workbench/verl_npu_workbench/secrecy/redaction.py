"""Removes private data from a text: keys and passwords, user names, host names, addresses, and paths."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from .masking import Masking

_MAIL = re.compile(r"\b[\w.+\-]{1,64}@[\w\-]{1,63}(?:\.[\w\-]{1,63}){1,5}\b")
_ADDRESS = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]\d)")
_LOCAL = ("127.0.0.1", "0.0.0.0")
_IPV6 = re.compile(r"(?<![\w:])(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{1,4}(?![\w:])")
_PATH = re.compile(r"(?<![\w:/<])/(?:[\w.+@=\-]{1,255}/){1,30}[\w.+@=\-]{0,255}")
_KEPT_PARTS = 3
"""How many parts at the end of a path are kept. They identify a module, not a user."""
_HOMES = ("home", "users")
"""Folders whose entries are user names."""
_PUBLIC = ("/usr/local/Ascend", "/usr/lib", "/dev/", "/proc/", "/tmp/ray")
_HOST = re.compile(
    r"(?P<label>\b(?:node|host|hostname|server|nodename)(?:\s?[=:]\s?| )[\"']?)(?P<name>[\w\-]{0,60}\d[\w.\-]{0,80})"
)


_NAME = re.compile(r"\w[\w\-]*")
_SHORTEST = 3
"""The fewest characters of a name that is replaced. Shorter names occur too often as parts of other words."""


class Redaction:
    """Removes private data. A host or an address always gets the same replacement, so that the text stays
    understandable."""

    def __init__(self, names: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> None:
        """`names` are known user and host names. `environ` contains variables that may be secret."""
        self._mask = Masking(environ or {})
        self._names = frozenset(name for name in names if len(name) >= _SHORTEST)
        self._addresses: dict[str, str] = {}
        self._hosts: dict[str, str] = {}

    @staticmethod
    def here(hosts: Iterable[str] = ()) -> Redaction:
        """Return a redaction for this user name, this host, the given other hosts, and this process's environment
        variables."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            user = ""
        host = socket.gethostname()
        return Redaction(("" if user == "root" else user, host, host.partition(".")[0], *hosts), os.environ)

    def said(self) -> str:
        """Return how many secrets of each kind have been masked so far."""
        counted = self._mask.counts.most_common()
        return ", ".join(f"{kind} {count}" for kind, count in counted) or "nothing"

    def __call__(self, text: str) -> str:
        """Return a text without private data."""
        text = self._mask(text)
        text = _MAIL.sub("<address>", text)
        text = _HOST.sub(lambda found: found["label"] + self._named(self._hosts, found["name"], "host"), text)
        text = _PATH.sub(lambda found: _shortened(found[0]), text)
        text = _ADDRESS.sub(lambda found: self._address(found[0]), text)
        text = _IPV6.sub(lambda found: self._address(found[0]), text)
        return _NAME.sub(lambda found: "<name>" if found[0] in self._names else found[0], text)

    def _address(self, text: str) -> str:
        return text if text in _LOCAL else self._named(self._addresses, text, "ip")

    def _named(self, known: dict[str, str], name: str, kind: str) -> str:
        return known.setdefault(name, f"<{kind} {len(known) + 1}>")


def _shortened(path: str) -> str:
    """Return the last parts of a path, without a user name."""
    if path.startswith(_PUBLIC):
        return path
    parts = PurePath(path).parts
    for mark in ("site-packages", "dist-packages"):
        if mark in parts:
            return "…/" + "/".join(parts[parts.index(mark) + 1 :])
    if parts[1:2] and parts[1].lower() in _HOMES:
        parts = (parts[0], *parts[3:])
    return "…/" + "/".join(parts[1:][-_KEPT_PARTS:] if len(parts) > _KEPT_PARTS + 1 else parts[-1:])
