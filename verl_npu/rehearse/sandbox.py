"""A sandbox for programs of others, made by bubblewrap: what runs in it changes nothing outside, and ends in time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .. import environment
from ..errors import SandboxError

__all__ = ["PROGRAM", "Ended", "Limits", "Sandbox", "device_cache", "importable", "run", "sandbox_program"]

PROGRAM = "bwrap"
_EMPTY = ("dev", "proc", "sys", "tmp", "run", "home", "root", "mnt", "media", "srv", "lost+found")
"""Folders of the root that a sandbox has anew: what is in them is nobody's business, or the kernel's."""
_POLL = 0.05


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use before it is ended."""

    seconds: float
    processes: int = 512
    output: int = 1 << 20
    """Bytes of output that are kept; more is dropped."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program in a sandbox ended."""

    status: int
    output: bytes
    seconds: float
    limit: str = ""
    """The limit that it went over, in words; empty if none."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What a program sees: the machine's system folders read-only, empty writable ones for the rest, and these."""

    read_only: tuple[Path, ...] = ()
    writable: Mapping[Path, Path] = field(default_factory=dict)
    """Folders outside by where they are inside."""
    folders: tuple[Path, ...] = ()
    """Empty folders that exist only inside."""
    files: Mapping[Path, Path] = field(default_factory=dict)
    """What is read-only inside, by where it is inside."""
    keep: tuple[int, ...] = ()
    """File descriptors that the program inherits."""

    def arguments(self, folder: Path) -> list[str]:
        """Return bubblewrap's options for a program that starts in `folder`."""
        words = ["--die-with-parent", "--unshare-all", "--new-session", "--hostname", "localhost", "--cap-drop", "ALL"]
        words += _root()
        words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"]
        # The interpreter, and the environment that it belongs to.
        for path in (*map(Path, {sys.prefix, sys.base_prefix}), *self.read_only):
            words += ["--ro-bind", str(path), str(path)]
        for inside, outside in self.files.items():
            words += ["--ro-bind", str(outside), str(inside)]
        for inside, outside in self.writable.items():
            words += ["--bind", str(outside), str(inside)]
        for path in self.folders:
            words += ["--dir", str(path)]
        return [*words, "--chdir", str(folder)]


def device_cache() -> Path:
    """Return the folder that has the compiled virtual device."""
    return Path(environment.CACHE.text() or Path.home() / ".cache" / "verl-npu").expanduser()


def importable(tree: Path) -> tuple[Path, ...]:
    """Return the folders that this interpreter imports from, but for its own environment and what `tree` lies in."""
    own = tuple({sys.prefix, sys.base_prefix})
    found = [Path(entry).resolve() for entry in sys.path if entry and not entry.startswith(own)]
    return tuple(dict.fromkeys(path for path in found if path.is_dir() and path not in (tree, *tree.parents)))


def sandbox_program() -> str:
    """Return bubblewrap's path, after it made a sandbox that does nothing.

    Raises:
        SandboxError: it is not installed, or this machine does not let it make a sandbox.
    """
    found = shutil.which(PROGRAM)
    if found is None:
        raise SandboxError(
            subject="running a launch script in a sandbox",
            expected="the program bwrap",
            found="none on PATH",
            fix="install the package bubblewrap (apt-get install bubblewrap, yum install bubblewrap), or give the "
            "trainer's command itself: verl-npu rehearse -- python3 -m verl.trainer.main_ppo key=value …",
        )
    tried = subprocess.run(
        [found, *Sandbox().arguments(Path("/tmp")), "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        raise SandboxError(
            subject="running a launch script in a sandbox",
            expected=f"{found} to make one",
            found=" ".join(tried.stderr.split())[:300] or f"status {tried.returncode}",
            fix="allow user namespaces (in a container: --security-opt seccomp=unconfined), or give the trainer's "
            "command itself: verl-npu rehearse -- python3 -m verl.trainer.main_ppo key=value …",
        )
    return found


def run(
    sandbox: Sandbox,
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    limits: Limits,
    log: Path,
    tick: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command in a sandbox that starts in `folder`, its output in `log`; nothing of it survives the return.

    Raises:
        SandboxError: there can be no sandbox here.
    """
    whole = [sandbox_program(), *sandbox.arguments(folder), "--", *command]
    started = time.monotonic()
    limit = ""
    with log.open("wb") as output, _process(whole, environment, output.fileno(), sandbox.keep) as child:
        while child.poll() is None:
            tick()
            limit = _exceeded(limits, time.monotonic() - started, child.pid, log)
            if limit:
                break
            time.sleep(_POLL)
    tick()
    with log.open("rb") as stream:
        said = stream.read(limits.output)
    return Ended(child.returncode, said, time.monotonic() - started, limit)


@contextmanager
def _process(
    command: Sequence[str], environment: Mapping[str, str], output: int, keep: Sequence[int]
) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=keep,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        # The first process of a process namespace takes all others of it with it, however deep they hide.
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _exceeded(limits: Limits, seconds: float, pid: int, log: Path) -> str:
    if seconds > limits.seconds:
        return f"it was still running after {limits.seconds:.0f} s"
    if log.stat().st_size > 64 * limits.output:
        return f"it printed more than {64 * limits.output >> 20} MiB"
    count = _inside(pid)
    if count > limits.processes:
        return f"it had {count} processes at once, and {limits.processes} are allowed"
    return ""


def _inside(pid: int) -> int:
    """Count the processes below `pid`: in another process namespace than ours, and of its tree."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text(errors="replace")
            except OSError:
                continue  # it ended meanwhile
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, left = 0, [pid]
    while left:
        below = children.get(left.pop(), [])
        found += len(below)
        left += below
    return found


def _root() -> list[str]:
    """The machine's own folders, read-only; the rest of the root is writable and vanishes with the sandbox."""
    words = []
    for entry in sorted(Path("/").iterdir()):
        if entry.name in _EMPTY:
            continue
        if entry.is_symlink():
            words += ["--symlink", os.readlink(entry), str(entry)]
        elif entry == Path("/usr"):
            words += _usr(entry)
        elif entry.is_dir() and os.access(entry, os.R_OK | os.X_OK) and entry.name in _SYSTEM:
            words += ["--ro-bind", str(entry), str(entry)]
    return words


_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt", "nix", "var")


def _usr(folder: Path) -> list[str]:
    """/usr by its parts, so that a script may write to /usr/local/Ascend, and finds none of a real CANN there."""
    words = []
    for entry in sorted([*folder.iterdir(), *(folder / "local").iterdir()]):
        if entry == folder / "local" or entry.name == "Ascend":
            continue
        if entry.is_symlink():
            words += ["--symlink", os.readlink(entry), str(entry)]
        else:
            words += ["--ro-bind", str(entry), str(entry)]
    return words
