"""The first program in a sandbox: it takes away what bubblewrap leaves, and becomes the program that is wanted.

It is started by its path, without this package: LARGEST-FILE MOST-PROCESSES COMMAND…, where a file of 0 may be any.

Root in a sandbox is the machine's root without its capabilities: it still owns the device nodes, which bubblewrap
binds writable, and the kernel's parameters, and could change both for all. A device on a read-only mount is read and
written as before.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_READ_ONLY, _REMOUNT, _BIND = 1, 32, 4096
_LEAST_PIDS = 512
_SHARED_PAGES = 1 << 14
_CAPABILITIES_VERSION = 0x20080522


def main() -> int:
    largest, most, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    _limit_processes(int(most))
    _be_ended_first()
    if os.geteuid() == 0:
        _limit_the_kernel()
        for path in ("/proc", *(f"/dev/{name}" for name in DEVICES)):
            _make_read_only(libc, path)
    _drop_capabilities(libc)
    # A dump would go to the machine's own handler, outside of the sandbox.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if int(largest):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest), int(largest)))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


def _limit_processes(most: int) -> None:
    """Have the kernel refuse more, as far as it can; who watches the sandbox ends it for fewer."""
    major, minor = (int("".join(filter(str.isdigit, part))) for part in os.uname().release.split(".")[:2])
    if os.geteuid() != 0:
        # Before, all processes of the user were counted, those outside as well.
        if (major, minor) >= (5, 14):
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    elif (major, minor) >= (6, 14):
        # No limit of that kind holds for root. Since this version the parameter is the sandbox's own.
        with open("/proc/sys/kernel/pid_max", "w") as file:
            file.write(str(max(most, _LEAST_PIDS)))


def _be_ended_first() -> None:
    """Have the kernel end this before anything else where memory runs out."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _limit_the_kernel() -> None:
    """Take away what memory could be hidden by from who watches: mounts of its own, System V's shared memory.

    Other users than root lack the right; bubblewrap itself takes the former from them.
    """
    for name, value in (("user/max_user_namespaces", 0), ("kernel/shmall", _SHARED_PAGES)):
        try:
            with open(f"/proc/sys/{name}", "w") as file:
                file.write(str(value))
        except OSError:
            continue  # a kernel before that let nobody


def _make_read_only(libc: ctypes.CDLL, path: str) -> None:
    if not os.path.exists(path):
        return
    # Flags that the mount has are locked: a remount keeps them.
    flags = os.statvfs(path).f_flag & 0xF | _READ_ONLY | _REMOUNT | _BIND
    if libc.mount(b"none", path.encode(), None, flags, None):
        sys.exit(f"{path}: {os.strerror(ctypes.get_errno())}")


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """None is left, and bubblewrap has seen to it that no program gains any."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()
    if libc.capset(header, data):
        sys.exit(f"capabilities: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    sys.exit(main())
