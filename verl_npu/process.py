"""Which process of a job this is."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells this process from every other one of its job."""

    host: str
    pid: int
    token: str
    """Differs between containers: they often share a host name, and each counts its processes from 1."""


def is_ray_worker() -> bool:
    """Whether Ray started this process to run tasks or an actor."""
    return sys.argv[:1] != [] and os.path.basename(sys.argv[0]) == "default_worker.py"


def simulated() -> str:
    """Say what of this process is simulated, if anything."""
    # The virtual Ascend marks its torch_npu; a real one has no such attribute.
    return str(getattr(sys.modules.get("torch_npu"), "__simulated__", ""))


def role() -> str:
    """Return `driver`, or the class of the Ray actor that this process is.

    Ray keeps it in the title of the process, for `ps`; asking Ray itself would import it.
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
    """Return what tells this process from every other one of its job."""
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
    # Field 22 of proc(5)'s stat; the name in field 2 is in parentheses and may hold blanks.
    fields = _first_line("/proc/self/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""
