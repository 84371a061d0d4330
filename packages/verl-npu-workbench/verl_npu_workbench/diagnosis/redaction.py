"""Takes out of a text what should not be shown to strangers: keys and passwords, names of users and hosts, paths."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterable
from pathlib import PurePath

_SECRETS = (
    # What is known by its form.
    (re.compile(r"\b(?:hf_|ghp_|gho_|ghs_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|ms-)[\w\-]{8,200}"), "<key>"),
    (re.compile(r"\beyJ[\w\-]{8,2000}\.[\w\-]{8,4000}\.[\w\-]{0,500}"), "<token>"),
    # What is known by its name.
    (
        re.compile(
            r"(?i)(?P<name>\b[\w.\-]{0,60}(?:api[_-]?key|token|secret|passwd|password|credential|access[_-]?key)s?"
            r"[\"']?\s{0,3}[:=]\s{0,3}[\"']?)(?!\d{1,9}(?:\.\d{1,9})?\b)(?P<value>[^\s\"',;&}]{4,400})"
        ),
        r"\g<name><secret>",
    ),
    (re.compile(r"(?i)(?P<name>\b(?:bearer|basic) )[\w\-.=+/]{8,2000}"), r"\g<name><secret>"),
    (re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.\-]{1,20}://)[^\s/@:]{0,200}:[^\s/@]{1,200}@"), r"\g<scheme><secret>@"),
    (re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.\-]{1,20}://)[^\s/@:]{1,200}@"), r"\g<scheme><secret>@"),
)
_BEGIN, _END = "-----BEGIN ", "-----END "
_MAIL = re.compile(r"\b[\w.+\-]{1,64}@[\w\-]{1,63}(?:\.[\w\-]{1,63}){1,5}\b")
_ADDRESS = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]\d)")
_LOCAL = ("127.0.0.1", "0.0.0.0")
_IPV6 = re.compile(r"(?<![\w:])(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{1,4}(?![\w:])")
_PATH = re.compile(r"(?<![\w:/<])/(?:[\w.+@=\-]{1,255}/){1,30}[\w.+@=\-]{0,255}")
_TAILS = 3
"""Parts of a path that are kept: they name a module, and no user."""
_HOMES = ("home", "users")
"""What comes next is the name of a user."""
_KEPT = ("/usr/local/Ascend", "/usr/lib", "/dev/", "/proc/", "/tmp/ray")
_HOST = re.compile(
    r"(?P<said>\b(?:node|host|hostname|server|nodename)(?:\s?[=:]\s?| )[\"']?)(?P<name>[\w\-]{0,60}\d[\w.\-]{0,80})"
)


_NAME = re.compile(r"\w[\w\-]*")
_SHORTEST = 2
"""Characters of a name that may be a part of anything."""


class Redaction:
    """Replaces the same name by the same word throughout a text, so that it still can be followed."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names` are those of users and hosts that are known."""
        self._names = frozenset(name for name in names if len(name) > _SHORTEST)
        self._addresses: dict[str, str] = {}
        self._hosts: dict[str, str] = {}

    @staticmethod
    def here(hosts: Iterable[str] = ()) -> Redaction:
        """Return one that knows the names of this user, of this host, and of others."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            user = ""
        host = socket.gethostname()
        return Redaction(("" if user == "root" else user, host, host.partition(".")[0], *hosts))

    def __call__(self, text: str) -> str:
        """Return a text without what should not be shown."""
        text = _without_keys(text)
        for pattern, instead in _SECRETS:
            text = pattern.sub(instead, text)
        text = _MAIL.sub("<address>", text)
        text = _HOST.sub(lambda found: found["said"] + self._named(self._hosts, found["name"], "host"), text)
        text = _PATH.sub(lambda found: _shortened(found[0]), text)
        text = _ADDRESS.sub(lambda found: self._address(found[0]), text)
        text = _IPV6.sub(lambda found: self._address(found[0]), text)
        return _NAME.sub(lambda found: "<name>" if found[0] in self._names else found[0], text)

    def _address(self, text: str) -> str:
        return text if text in _LOCAL else self._named(self._addresses, text, "ip")

    def _named(self, known: dict[str, str], name: str, kind: str) -> str:
        return known.setdefault(name, f"<{kind} {len(known) + 1}>")


def _without_keys(text: str) -> str:
    """Take out keys as OpenSSL and SSH write them; of one without an end, all that follows."""
    first, *rest = text.split(_BEGIN)
    return first + "".join("<key>" + part.partition(_END)[2].partition("-----")[2] for part in rest)


def _shortened(path: str) -> str:
    """Of a path, the parts that name a program's file."""
    if path.startswith(_KEPT):
        return path
    parts = PurePath(path).parts
    for mark in ("site-packages", "dist-packages"):
        if mark in parts:
            return "…/" + "/".join(parts[parts.index(mark) + 1 :])
    if parts[1:2] and parts[1].lower() in _HOMES:
        parts = (parts[0], *parts[3:])
    return "…/" + "/".join(parts[1:][-_TAILS:] if len(parts) > _TAILS + 1 else parts[-1:])
