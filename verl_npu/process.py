"""The identity of this process in its job."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Facts that distinguish this process from all other processes of its job."""

    host: str
    pid: int
    token: str
    """A text that differs between containers. Containers often share a host name, and each numbers its processes from
    1."""


def is_ray_worker() -> bool:
    """Return whether Ray started this process to run tasks or an actor."""
    return sys.argv[:1] != [] and os.path.basename(sys.argv[0]) == "default_worker.py"


def simulated() -> str:
    """Return what is simulated in this process. Return an empty text if nothing is simulated."""
    # The virtual Ascend sets this attribute on its torch_npu; a real one does not have it.
    return str(getattr(sys.modules.get("torch_npu"), "__simulated__", ""))


def role() -> str:
    """Return `driver`, or the class of the Ray actor in this process.

    The class is read from the process title, which Ray sets for `ps`. Asking Ray itself would import Ray.
    """
    if not is_ray_worker():
        return "driver"
    try:
        with open("/proc/self/cmdline", "rb") as stream:
            title = stream.read().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return "ray worker"
    return title.removeprefix("ray::").partition(".")[0] or "ray worker"


def identity() -> Identity:
    """Return the identity of this process."""
    import hashlib
    import socket

    facts = "\0".join((_first_line("/proc/sys/kernel/random/boot_id"), _pid_namespace(), _start_time()))
    return Identity(socket.gethostname(), os.getpid(), hashlib.blake2b(facts.encode(), digest_size=4).hexdigest())


def _first_line(path: str) -> str:
    try:
        with open(path) as stream:
            return stream.readline().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_time() -> str:
    # Field 22 of proc(5)'s stat. The name in field 2 is in parentheses and may contain blanks.
    fields = _first_line("/proc/self/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""
