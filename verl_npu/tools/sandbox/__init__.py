"""A sandbox for programs of others, made by bubblewrap: what runs in it changes nothing outside, and ends in time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...ascend.variables import VIRTUAL_CACHE
from ...errors import SandboxError
from ..processes import ProcessTree, descendants
from . import confinement

__all__ = ["Ended", "Limits", "Sandbox", "device_cache", "importable", "run", "sandbox_program", "why_none"]

_PROGRAM = "bwrap"
_EMPTY = ("dev", "proc", "sys", "tmp", "run", "home", "root", "mnt", "media", "srv", "lost+found")
"""Folders of the root that a sandbox has anew: what is in them is nobody's business, or the kernel's."""
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt", "nix")
"""Folders of the root that programs need. /var is not among them: services have their sockets there."""
_NO_TREES = (Path("/"), Path("/proc"), Path("/sys"), Path("/dev"))
"""Folders that a sandbox has its own of: someone who starts in them needs nothing of what is there."""
_CONFINEMENT = Path("/confinement.py")
_POLL, _TICK = 0.02, 0.25


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
    tree: Path | None = None
    """A folder with all that is in it read-only, in which what is made beside that vanishes with the sandbox."""
    folders: tuple[Path, ...] = ()
    """Empty folders that exist only inside."""
    files: Mapping[Path, Path] = field(default_factory=dict)
    """What is read-only inside, by where it is inside."""
    keep: tuple[int, ...] = ()
    """File descriptors that the program inherits."""

    def arguments(self, folder: Path) -> list[str]:
        """Return bubblewrap's options for a program that starts in `folder`."""
        words = ["--die-with-parent", "--unshare-all", "--new-session", "--hostname", "localhost", "--cap-drop", "ALL"]
        if os.geteuid() == 0:
            # For the confinement, which gives it up before the program starts.
            words += ["--cap-add", "CAP_SYS_ADMIN"]
        words += _root()
        words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run", "--dir", "/var/tmp"]
        for inside, mount in sorted(self._mounts(), key=lambda each: len(each[0].parts)):
            words += [*mount, str(inside)]
        for path in self.folders:
            words += ["--dir", str(path)]
        return [*words, "--chdir", str(folder)]

    def _mounts(self) -> Iterator[tuple[Path, tuple[str, ...]]]:
        """What is mounted and how; one may lie in another, which must come first."""
        # The interpreter, and the environment that it belongs to.
        for path in (*_outside_of_the_system({sys.prefix, sys.base_prefix}), *self.read_only):
            yield path, ("--ro-bind", str(path))
        if self.tree is not None and self.tree not in _NO_TREES:
            yield self.tree, ("--tmpfs",)
            for path in _entries(self.tree):
                yield path, ("--ro-bind", str(path))
        for inside, outside in {**self.files, _CONFINEMENT: Path(confinement.__file__)}.items():
            yield inside, ("--ro-bind", str(outside))
        for inside, outside in self.writable.items():
            yield inside, ("--bind", str(outside))


def device_cache() -> Path:
    """Return the folder that has the compiled virtual device."""
    return Path(os.environ.get(VIRTUAL_CACHE, "").strip() or Path.home() / ".cache" / "virtual-ascend").expanduser()


def importable(tree: Path) -> tuple[Path, ...]:
    """Return the folders that this interpreter imports from, but for its own environment and what `tree` lies in."""
    own = tuple({sys.prefix, sys.base_prefix})
    entries = [entry for entry in sys.path if entry and not entry.startswith(own)]
    # What pip installs editable is often found by a finder, and is on no path.
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            entries += map(str, getattr(module, "MAPPING", {}).values())
    found = [Path(entry).resolve() for entry in entries]
    return tuple(dict.fromkeys(path for path in found if path.exists() and path not in (tree, *tree.parents)))


def sandbox_program() -> str:
    """Return bubblewrap's path, after it made a sandbox that does nothing.

    Raises:
        SandboxError: it is not installed, or this machine does not let it make a sandbox.
    """
    found = shutil.which(_PROGRAM)
    if found is None:
        raise SandboxError(
            subject="running a launch script in a sandbox",
            expected="the program bwrap",
            found="none on PATH",
            fix="install the package bubblewrap (apt-get install bubblewrap, yum install bubblewrap), or give the "
            "trainer's command itself: verl-npu rehearse -- python3 -m verl.trainer.main_ppo key=value …",
        )
    tried = subprocess.run(
        [found, *Sandbox().arguments(Path("/tmp")), "--", *_confined(["true"], Limits(1))],
        capture_output=True,
        text=True,
        check=False,
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


def why_none() -> str:
    """Return why there can be no sandbox here; empty if there can."""
    try:
        sandbox_program()
    except SandboxError as error:
        return error.found
    return ""


def run(
    sandbox: Sandbox | None,
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    limits: Limits,
    log: Path,
    tick: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command that starts in `folder`, its output in `log`; nothing of it survives the return.

    Without a sandbox it runs as it would by hand, within the same limits.

    Raises:
        SandboxError: there can be no sandbox here.
    """
    whole: list[str] = list(command)
    keep: tuple[int, ...] = ()
    if sandbox is not None:
        whole, keep = [sandbox_program(), *sandbox.arguments(folder), "--", *_confined(command, limits)], sandbox.keep
    started = time.monotonic()
    limit = ""
    # A sandbox takes all of its processes with it.
    orphans = None if sandbox is not None else ProcessTree()
    with log.open("wb") as output, _process(whole, environment, folder, output.fileno(), keep) as child:
        watch = _Watch(limits, child.pid, log)
        ticked = started
        while child.poll() is None:
            limit = watch.exceeded()
            if limit:
                break
            if time.monotonic() - ticked > _TICK:
                tick()
                ticked = time.monotonic()
            time.sleep(_POLL)
    if orphans is not None:
        orphans.end(0)
    tick()
    with log.open("rb") as stream:
        said = stream.read(limits.output)
    return Ended(child.returncode, said, time.monotonic() - started, limit)


@contextmanager
def _process(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, output: int, keep: Sequence[int]
) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        command,
        env=dict(environment),
        cwd=folder if folder.is_dir() else None,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=keep,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        # The first process of a sandbox takes all others of it with it, however deep they hide.
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _confined(command: Sequence[str], limits: Limits) -> list[str]:
    # Threads count for the kernel, and for us processes alone.
    most = 4 * limits.processes
    return [sys.executable, "-I", "-S", str(_CONFINEMENT), str(limits.file), str(most), *command]


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


def _outside_of_the_system(paths: Iterable[str]) -> list[Path]:
    """What is not below a folder that is there anyway: /usr as a whole would bring a real CANN back."""
    system = [Path("/usr"), *(Path("/", name) for name in _SYSTEM)]
    return [path for path in map(Path, paths) if not any(each in (path, *path.parents) for each in system)]


def _entries(tree: Path) -> list[Path]:
    return [entry for entry in sorted(tree.iterdir()) if entry.name != ".git" and entry.exists()]


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


_LOOK = 0.25
"""Seconds between two looks at all processes; a look takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use before it is ended."""

    seconds: float
    processes: int = 512
    output: int = 1 << 20
    """Bytes of output that are kept; more is dropped, and 64 times as many end it."""
    memory: int = 0
    """Bytes that its processes may have of their own, together with what they write to files in memory; 0: any."""
    file: int = 0
    """Bytes of the largest file that it may write; 0: any."""


class _Watch:
    """Looks whether what a process has started keeps within its limits."""

    def __init__(self, limits: Limits, pid: int, log: Path) -> None:
        self.limits, self.pid, self.log = limits, pid, log
        self.started = self.looked = time.monotonic()
        self.others = _all_threads()

    def exceeded(self) -> str:
        """Return the limit that it is over, in words; empty if none. Called many times a second, it costs little."""
        limits, now = self.limits, time.monotonic()
        if now - self.started > limits.seconds:
            return f"it was still running after {limits.seconds:.0f} s"
        if self.log.stat().st_size > 64 * limits.output:
            return f"it printed more than {64 * limits.output >> 20} MiB"
        # Processes that double are seen by the number of all, before there are too many to be looked at.
        if now - self.looked < _LOOK and _all_threads() - self.others < limits.processes:
            return ""
        inside = descendants(self.pid)
        self.looked = time.monotonic()
        self.others = max(_all_threads() - len(inside), 0)
        if len(inside) > limits.processes:
            return f"it had {len(inside)} processes at once, and {limits.processes} are allowed"
        if limits.memory and _memory_of(inside) > limits.memory:
            return f"it took more than {limits.memory >> 20} MiB of memory"
        return ""


def _all_threads() -> int:
    """Threads of the whole machine."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def _memory_of(processes: Sequence[int]) -> int:
    """Return the bytes that processes have of their own, and that the files of their sandbox take in memory."""
    pages = 0
    for process in processes:
        try:
            _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
        except (OSError, ValueError):
            continue  # it ended meanwhile
        pages += int(resident) - int(shared)
    return pages * os.sysconf("SC_PAGE_SIZE") + max(map(_files, processes), default=0)


def _files(process: int) -> int:
    """Bytes in the file systems in memory that a process has, and this one has not."""
    try:
        mine = {line.split()[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
        its = {
            (words := line.split())[2]: words[4]
            for line in Path(f"/proc/{process}/mountinfo").read_text().splitlines()
            if " - tmpfs " in line
        }
        found = [
            _filesystem(f"/proc/{process}/root{place}", device) for device, place in its.items() if device not in mine
        ]
    except OSError:
        return 0  # it ended meanwhile
    return sum((each.f_blocks - each.f_bfree) * each.f_frsize for each in found if each is not None)


def _filesystem(place: str, device: str) -> os.statvfs_result | None:
    """What `place` is on, or None if that is not `device`: while a sandbox is made, its mounts still move."""
    opened = os.open(place, os.O_PATH)
    try:
        found = os.fstat(opened).st_dev
        return os.fstatvfs(opened) if f"{os.major(found)}:{os.minor(found)}" == device else None
    finally:
        os.close(opened)
