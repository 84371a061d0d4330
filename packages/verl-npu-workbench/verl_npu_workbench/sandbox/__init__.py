"""A sandbox for programs of others, made by bubblewrap: what runs in it changes nothing outside, and ends in time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from verl_npu.ascend.variables import VIRTUAL_CACHE
from verl_npu.errors import SandboxError
from verl_npu.language import gettext as _

from ..processes import ProcessTree
from . import confinement
from .answers import Answer, Pipe
from .cgroup import Group, group
from .limits import Limits, Watch, available_memory

__all__ = [
    "Answer",
    "Ended",
    "Limits",
    "Pipe",
    "Sandbox",
    "ask",
    "available_memory",
    "check_possible",
    "device_cache",
    "importable",
    "is_private",
    "run",
    "sandbox_program",
    "why_none",
]

_PROGRAM = "bwrap"
_NO_NESTING = ("--unshare-user", "--disable-userns")
"""Since bubblewrap 0.8. Root needs its rights for the confinement, which takes the same away."""
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

    def arguments(self, folder: Path) -> list[str]:
        """Return bubblewrap's options for a program that starts in `folder`."""
        words = ["--die-with-parent", "--unshare-all", "--new-session", "--hostname", "localhost", "--cap-drop", "ALL"]
        if os.geteuid() == 0:
            # For the confinement, which gives them up before the program starts.
            words += ["--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SYS_RESOURCE"]
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
                yield path, _entry(path, self.tree)
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


def is_private(path: Path) -> bool:
    """Whether a folder that a stranger names is not shown: the user's home, what it lies in, what is hidden in it."""
    found, home = path.resolve(), Path.home().resolve()
    if found in (home, *home.parents):
        return True
    return found.is_relative_to(home) and any(part.startswith(".") for part in found.relative_to(home).parts)


_FIX = _(
    "install the package bubblewrap (apt-get install bubblewrap, yum install bubblewrap){more}, or add --unconfined, "
    "which runs it with your home and your network"
)


def check_possible(unconfined: bool) -> None:
    """Raise SandboxError if a stranger's program is to be confined, and cannot be."""
    if not unconfined:
        sandbox_program()


def sandbox_program() -> tuple[str, ...]:
    """Return bubblewrap's path and options that not every version has, after it made a sandbox that does nothing.

    Raises:
        SandboxError: it is not installed, or this machine does not let it make a sandbox.
    """
    found = shutil.which(_PROGRAM)
    if found is None:
        raise SandboxError(
            subject=_("running what a launch script starts, and its source tree, in a sandbox"),
            expected=_("the program bwrap"),
            found=_("none on PATH"),
            fix=_FIX.format(more=""),
        )
    program, said = _tried(found)
    if not program:
        raise SandboxError(
            subject=_("running what a launch script starts, and its source tree, in a sandbox"),
            expected=_("{found} to make one").format(found=found),
            found=said,
            fix=_FIX.format(more=_(" and allow user namespaces (in a container: --security-opt seccomp=unconfined)")),
        )
    return program


@cache
def _tried(found: str) -> tuple[tuple[str, ...], str]:
    """The words that a sandbox is made by, or none and what bubblewrap said."""
    said = ""
    for options in ((),) if os.geteuid() == 0 else (_NO_NESTING, ()):
        tried = subprocess.run(
            [found, *options, *Sandbox().arguments(Path("/tmp")), "--", *_confined(["true"], Limits(1))],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if tried.returncode == 0:
            return (found, *options), ""
        said = " ".join(tried.stderr.split())[:300] or _("status {returncode}").format(returncode=tried.returncode)
    return (), said


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
    *,
    asked: bytes = b"",
    answer: int | None = None,
    keep: Sequence[int] = (),
) -> Ended:
    """Run a command that starts in `folder`, its output in `log`; nothing of it survives the return.

    Without a sandbox it runs as it would by hand, within the same limits.

    Args:
        asked: what it reads from stdin.
        answer: the file descriptor that its stdout is; with none that goes to the log as well.
        keep: file descriptors that it inherits.

    Raises:
        SandboxError: there can be no sandbox here.
    """
    whole: list[str] = list(command)
    if sandbox is not None:
        whole = [*sandbox_program(), *sandbox.arguments(folder), "--", *_confined(command, limits)]
    started = time.monotonic()
    limit = ""
    # A sandbox takes all of its processes with it. Orphans are the main thread's business.
    alone = sandbox is None and threading.current_thread() is threading.main_thread()
    orphans = ProcessTree() if alone else None
    written = tuple(dict.fromkeys(sandbox.writable.values())) if sandbox is not None else ()
    with (
        log.open("wb") as output,
        tempfile.TemporaryFile() as stdin,
        group(limits.memory, 4 * limits.processes) as made,
    ):
        stdin.write(asked)
        stdin.seek(0)
        streams = (stdin.fileno(), output.fileno() if answer is None else answer, output.fileno())
        with _process(whole, environment, folder, streams, keep, made) as child:
            watch = Watch(limits, child.pid, log, written, made)
            ticked = started
            while child.poll() is None:
                limit = watch.exceeded()
                if limit:
                    break
                if time.monotonic() - ticked > _TICK:
                    tick()
                    ticked = time.monotonic()
                time.sleep(_POLL)
            limit = limit or watch.refused()
    if orphans is not None:
        orphans.end(0)
    tick()
    with log.open("rb") as stream:
        said = stream.read(limits.output)
    return Ended(child.returncode, said, time.monotonic() - started, limit)


def ask(
    sandbox: Sandbox | None,
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    limits: Limits,
    log: Path,
    question: object,
    tick: Callable[[], None] = lambda: None,
) -> tuple[Ended, Answer]:
    """Run a command that reads JSON from stdin, and writes JSON to stdout; return how it ended and what it answered.

    `tick` is called a few times a second meanwhile.

    Raises:
        SandboxError: there can be no sandbox here.
    """
    with Pipe() as pipe:
        asked = json.dumps(question).encode()
        ended = run(sandbox, command, folder, environment, limits, log, tick, asked=asked, answer=pipe.writer)
    return ended, Answer.of(pipe)


@contextmanager
def _process(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    streams: tuple[int, int, int],
    keep: Sequence[int],
    made: Group | None,
) -> Iterator[subprocess.Popen[bytes]]:
    stdin, stdout, stderr = streams
    child = subprocess.Popen(
        [*(made.command if made is not None else ()), *command],
        env=dict(environment),
        cwd=folder if folder.is_dir() else None,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=keep,
        start_new_session=True,
        preexec_fn=made.join if made is not None else None,
    )
    try:
        if made is not None:
            made.follow(child.pid)
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
    """What of a tree is shown; of one that is the user's home, or has it below, nothing that is private."""
    home = Path.home().resolve()
    entries = [entry for entry in sorted(tree.iterdir()) if entry.name != ".git" and entry.exists()]
    hidden = {entry for entry in entries if tree == home and entry.name.startswith(".")}
    return [entry for entry in entries if entry not in (home, *home.parents) and entry not in hidden]


def _entry(path: Path, tree: Path) -> tuple[str, ...]:
    """A link of the tree stays one, so that it leads nowhere outside; but a package that is imported through it."""
    inside = path.resolve().is_relative_to(tree)
    if path.is_symlink() and not inside and (is_private(path) or not (path / "__init__.py").is_file()):
        return ("--symlink", os.readlink(path))
    return ("--ro-bind", str(path))


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
