"""The first program that runs in a sandbox. It gives up the rights that bubblewrap leaves, and then executes the
wanted program.

It is started by its file path, without this package: LARGEST-FILE MOST-PROCESSES COMMAND…; a size of 0 means no limit.

Root in a sandbox is the machine's root user without capabilities. It still owns the kernel's parameters and the device
nodes, which bubblewrap mounts writable, and could change both for the whole machine. Both are therefore mounted
read-only. Devices can still be read and written on a read-only mount.
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
    _be_killed_first()
    if os.geteuid() == 0:
        _limit_the_kernel()
        for path in ("/proc", *(f"/dev/{name}" for name in DEVICES)):
            _make_read_only(libc, path)
    _drop_capabilities(libc)
    # A core dump would go to the machine's handler, outside the sandbox.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if int(largest):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest), int(largest)))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


def _limit_processes(most: int) -> None:
    """Make the kernel limit the number of processes as far as it can. The sandbox's watch enforces a lower limit."""
    major, minor = (int("".join(filter(str.isdigit, part))) for part in os.uname().release.split(".")[:2])
    if os.geteuid() != 0:
        # Before 5.14, the kernel also counted the user's processes outside.
        if (major, minor) >= (5, 14):
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    elif (major, minor) >= (6, 14):
        # RLIMIT_NPROC does not apply to root. Since 6.14, this parameter is separate for each sandbox.
        with open("/proc/sys/kernel/pid_max", "w") as file:
            file.write(str(max(most, _LEAST_PIDS)))


def _be_killed_first() -> None:
    """Tell the kernel to kill this process first when memory runs out."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _limit_the_kernel() -> None:
    """Forbid two ways of hiding memory from the watch: System V shared memory, and new user namespaces with their own
    mounts.

    Only root can set these kernel parameters. For other users, bubblewrap itself forbids new user namespaces.
    """
    for name, value in (("user/max_user_namespaces", 0), ("kernel/shmall", _SHARED_PAGES)):
        try:
            with open(f"/proc/sys/{name}", "w") as file:
                file.write(str(value))
        except OSError:
            continue  # older kernels do not allow this


def _make_read_only(libc: ctypes.CDLL, path: str) -> None:
    if not os.path.exists(path):
        return
    # The mount's flags are locked, so a remount must keep them.
    flags = os.statvfs(path).f_flag & 0xF | _READ_ONLY | _REMOUNT | _BIND
    if libc.mount(b"none", path.encode(), None, flags, None):
        sys.exit(f"{path}: {os.strerror(ctypes.get_errno())}")


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Give up all capabilities. bubblewrap has made sure that no program can gain new ones."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()
    if libc.capset(header, data):
        sys.exit(f"capabilities: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    sys.exit(main())
