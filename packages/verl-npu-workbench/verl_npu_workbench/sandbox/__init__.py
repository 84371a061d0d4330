"""A sandbox for untrusted programs, created with bubblewrap. The programs cannot change anything outside the sandbox,
and they are terminated after a time limit."""

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

from ..processes import ProcessTree, captured
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
"""Options that forbid nested sandboxes, available from bubblewrap 0.8 on. They are not used for root, because
`confinement` then needs root's rights and forbids nesting itself."""
_EMPTY = ("dev", "proc", "sys", "tmp", "run", "home", "root", "mnt", "media", "srv", "lost+found")
"""Folders in the root folder that are replaced in a sandbox, because their contents are private or belong to the
kernel."""
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt", "nix")
"""Folders in the root folder that programs need. /var is omitted, because it contains the sockets of services."""
_NO_TREES = (Path("/"), Path("/proc"), Path("/sys"), Path("/dev"))
"""Folders that are never mounted as a tree, because a sandbox has its own versions of them."""
_CONFINEMENT = Path("/confinement.py")
_POLL, _TICK = 0.02, 0.25


@dataclass(frozen=True, slots=True)
class Ended:
    """How a sandboxed program exited."""

    status: int
    output: bytes
    seconds: float
    limit: str = ""
    """A description of the exceeded limit. Empty if no limit was exceeded."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A program's view of the file system: read-only system folders, empty writable folders, and the paths in the
    fields of this class."""

    read_only: tuple[Path, ...] = ()
    writable: Mapping[Path, Path] = field(default_factory=dict)
    """The writable folders. The keys are paths inside the sandbox, and the values are paths outside."""
    tree: Path | None = None
    """A folder whose contents are read-only. New files in it disappear when the sandbox ends."""
    folders: tuple[Path, ...] = ()
    """Empty folders that exist only inside the sandbox."""
    files: Mapping[Path, Path] = field(default_factory=dict)
    """The read-only paths. The keys are paths inside the sandbox, and the values are paths outside."""

    def arguments(self, folder: Path) -> list[str]:
        """Return the bubblewrap options for a program whose working directory is `folder`."""
        words = ["--die-with-parent", "--unshare-all", "--new-session", "--hostname", "localhost", "--cap-drop", "ALL"]
        if os.geteuid() == 0:
            # The confinement needs these, and gives them up before the program starts.
            words += ["--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SYS_RESOURCE"]
        words += _root()
        words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run", "--dir", "/var/tmp"]
        for inside, mount in sorted(self._mounts(), key=lambda each: len(each[0].parts)):
            words += [*mount, str(inside)]
        for path in self.folders:
            words += ["--dir", str(path)]
        return [*words, "--chdir", str(folder)]

    def _mounts(self) -> Iterator[tuple[Path, tuple[str, ...]]]:
        """Yield the path of each mount inside the sandbox, with its options. The caller must sort the mounts so that
        outer folders come first."""
        # The interpreter, and the environment that it belongs to.
        for path in (*_outside_system({sys.prefix, sys.base_prefix}), *self.read_only):
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
    """Return the folder that caches the compiled virtual device."""
    return Path(os.environ.get(VIRTUAL_CACHE, "").strip() or Path.home() / ".cache" / "virtual-ascend").expanduser()


def importable(tree: Path) -> tuple[Path, ...]:
    """Return the folders that this interpreter imports from, except its own environment and the parent folders of
    `tree`."""
    own = tuple({sys.prefix, sys.base_prefix})
    entries = [entry for entry in sys.path if entry and not entry.startswith(own)]
    # Editable packages are often found by an import hook and are not on sys.path.
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            entries += map(str, getattr(module, "MAPPING", {}).values())
    found = [Path(entry).resolve() for entry in entries]
    return tuple(dict.fromkeys(path for path in found if path.exists() and path not in (tree, *tree.parents)))


def is_private(path: Path) -> bool:
    """Return whether a folder must stay invisible to programs in a sandbox. This applies to the user's home folder,
    the
    folders above it, and the hidden folders in it."""
    found, home = path.resolve(), Path.home().resolve()
    if found in (home, *home.parents):
        return True
    return found.is_relative_to(home) and any(part.startswith(".") for part in found.relative_to(home).parts)


_FIX = _(
    "install the package bubblewrap (apt-get install bubblewrap, yum install bubblewrap){more}, or add --unconfined, "
    "which gives the program access to your home and your network"
)


def check_possible(unconfined: bool) -> None:
    """Raise SandboxError if a sandbox is required but cannot be created."""
    if not unconfined:
        sandbox_program()


def sandbox_program() -> tuple[str, ...]:
    """Test whether bubblewrap works. Return the path of the program and the options that its version requires.

    Raises:
        SandboxError: bubblewrap is not installed, or this machine does not allow bubblewrap to create a sandbox.
    """
    found = shutil.which(_PROGRAM)
    if found is None:
        raise SandboxError(
            subject=_("the sandbox for a launch script and its source tree"),
            found=_("bwrap is not on PATH"),
            fix=_FIX.format(more=""),
        )
    program, said = _tried(found)
    if not program:
        raise SandboxError(
            subject=_("the sandbox for a launch script and its source tree"),
            expected=_("{found} to be able to create a sandbox").format(found=found),
            found=said,
            fix=_FIX.format(more=_(" and allow user namespaces (in a container: --security-opt seccomp=unconfined)")),
        )
    return program


@cache
def _tried(found: str) -> tuple[tuple[str, ...], str]:
    """Return the command that creates a sandbox and an empty error, or an empty command and bubblewrap's error."""
    said = ""
    for options in ((),) if os.geteuid() == 0 else (_NO_NESTING, ()):
        tried = captured([found, *options, *Sandbox().arguments(Path("/tmp")), "--", *_confined(["true"], Limits(1))])
        if tried.returncode == 0:
            return (found, *options), ""
        said = " ".join(tried.stderr.split())[:300] or _("status {returncode}").format(returncode=tried.returncode)
    return (), said


def why_none() -> str:
    """Return the reason why this machine cannot create a sandbox, or an empty string if it can."""
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
    """Run a command in `folder`, and write its output to `log`. When this function returns, all processes of the
    command have exited.

    Without a sandbox, the command runs as if the user had started it, but within the same limits.

    Args:
        sandbox: the sandbox, or None to run without a sandbox.
        command: the command.
        folder: the command's working directory.
        environment: the command's environment variables.
        limits: the command's limits.
        log: the file for the command's output.
        tick: a function that is called a few times a second.
        asked: the data to write to the command's stdin.
        answer: a file descriptor for the command's stdout (default: stdout goes to the log, too).
        keep: file descriptors that the command inherits.

    Raises:
        SandboxError: a sandbox cannot be created on this machine.
    """
    whole: list[str] = list(command)
    if sandbox is not None:
        whole = [*sandbox_program(), *sandbox.arguments(folder), "--", *_confined(command, limits)]
    started = time.monotonic()
    limit = ""
    # All processes of a sandbox end with it. Without one, only the main thread can collect orphans.
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
    """Run a command that reads JSON from stdin and writes JSON to stdout. Return how the command exited, and the JSON
    that it wrote.

    While the command runs, `tick` is called a few times a second.

    Raises:
        SandboxError: a sandbox cannot be created on this machine.
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
        # When the first process of a sandbox ends, all others end too.
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _confined(command: Sequence[str], limits: Limits) -> list[str]:
    # The kernel counts threads, and the limit of the sandbox counts processes.
    most = 4 * limits.processes
    return [sys.executable, "-I", "-S", str(_CONFINEMENT), str(limits.file), str(most), *command]


def _root() -> list[str]:
    """Return the options that mount the system folders read-only. Everything else below the root is temporary and
    writable."""
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


def _outside_system(paths: Iterable[str]) -> list[Path]:
    """Return the paths that are outside the system folders. The others are mounted anyway, and mounting all of /usr
    would expose a real CANN."""
    system = [Path("/usr"), *(Path("/", name) for name in _SYSTEM)]
    return [path for path in map(Path, paths) if not any(each in (path, *path.parents) for each in system)]


def _entries(tree: Path) -> list[Path]:
    """Return the entries of a tree that are visible in a sandbox. The user's home folder is omitted. If the tree is
    the home folder itself, its hidden entries are omitted, too."""
    home = Path.home().resolve()
    entries = [entry for entry in sorted(tree.iterdir()) if entry.name != ".git" and entry.exists()]
    hidden = {entry for entry in entries if tree == home and entry.name.startswith(".")}
    return [entry for entry in entries if entry not in (home, *home.parents) and entry not in hidden]


def _entry(path: Path, tree: Path) -> tuple[str, ...]:
    """Return the mount options for an entry of a tree. A link that leads out of the tree stays a link, unless it leads
    to a package."""
    inside = path.resolve().is_relative_to(tree)
    if path.is_symlink() and not inside and (is_private(path) or not (path / "__init__.py").is_file()):
        return ("--symlink", os.readlink(path))
    return ("--ro-bind", str(path))


def _usr(folder: Path) -> list[str]:
    """Return the options that mount /usr in parts. /usr/local/Ascend is then writable and contains no real CANN."""
    words = []
    for entry in sorted([*folder.iterdir(), *(folder / "local").iterdir()]):
        if entry == folder / "local" or entry.name == "Ascend":
            continue
        if entry.is_symlink():
            words += ["--symlink", os.readlink(entry), str(entry)]
        else:
            words += ["--ro-bind", str(entry), str(entry)]
    return words
