"""Finds the compiled device for this Python and torch. If no compiled device exists, compiles it once per machine."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from .. import variables
from ..cache import check_owner, is_finished, publish, unloadable, work_folder, writing
from ..errors import BuildError
from ..reporting import report
from .extension import Extension

if TYPE_CHECKING:
    from filelock import FileLock

NAME = "virtual_ascend_C"
SOURCES = Path(__file__).parent / "csrc"
PREBUILT = Path(__file__).parent / "prebuilt"


@dataclass(frozen=True, slots=True)
class Module:
    """A Python extension that is compiled against the installed torch."""

    name: str
    sources: Path


DEVICE = Module(NAME, SOURCES)
FLAGS = ("-O1", "-finline-small-functions", "-g0", "-Wall", "-Wno-unused-parameter")
WORK = 10_000
"""The CPU time for compiling the device, in units of `_unit()`. It is 57 s with a unit of 5.7 ms, and the ratio was
the same on two kinds of machine."""
TOGETHER = 2
"""The number of compilers that run at the same time."""
EVERY = 8.0  # seconds between two lines of progress
PATIENCE = 900.0  # seconds to wait for another process that compiles


def key(torch_version: str, sources: Path = SOURCES) -> str:
    """Return a name computed from everything that a library depends on: torch, Python's ABI, the machine, and
    virtual-ascend's sources."""
    digest = hashlib.sha256()
    digest.update(" ".join(FLAGS).encode())
    # The other modules include headers of the device.
    for source in sorted({*sources.iterdir(), *SOURCES.glob("*.h")}):
        if source.suffix in (".cpp", ".h"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    abi = sysconfig.get_config_var("SOABI") or f"cp{sys.version_info[0]}{sys.version_info[1]}"
    return f"torch{torch_version}-{abi}-{platform.machine()}-{digest.hexdigest()[:16]}"


def library(torch_version: str, cache: Path, module: Module = DEVICE) -> Path:
    """Return the path of a compiled module. The module is shipped with the package or cached; otherwise, it is
    compiled first.

    Raises:
        BuildError: there is no compiler or no ninja, the compiler failed, or another process has been compiling for 15
            minutes.
    """
    name = key(torch_version, module.sources)
    shipped = PREBUILT / name / f"{module.name}.so"
    if shipped.is_file():
        return shipped
    cached = cache / name / f"{module.name}.so"
    if not is_finished(cached):
        compile_once(cached, lambda target: _compile(target, module))
    check_owner(cached)
    return cached


def load(path: Path) -> Extension:
    """Import a compiled module.

    Raises:
        BuildError: this torch version cannot load the file.
    """
    name = path.stem
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise unloadable(path, "a file of another kind")
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise unloadable(path, str(error)) from error
    sys.modules[name] = module
    return cast("Extension", module)


def compiler() -> str:
    """Return the path of the C++ compiler.

    Raises:
        BuildError: there is no compiler.
    """
    chosen = os.environ.get("CXX")
    for candidate in (chosen,) if chosen else ("g++", "clang++", "c++"):
        if found := shutil.which(candidate):
            return found
    raise BuildError(
        subject="compiling virtual-ascend",
        expected="a C++ compiler (g++, clang++, or $CXX)",
        found=f"$CXX={chosen!r}, which is not on the PATH" if chosen else "no compiler",
        fix="install a compiler, for example with apt-get install g++",
    )


def run_compiler(out: Path, sources: Iterable[Path], flags: Sequence[str], subject: str) -> None:
    """Compile `sources` into `out`. `subject` is the name of the result in messages.

    Raises:
        BuildError: there is no compiler, or it failed.
    """
    command = [compiler(), *flags, "-o", str(out), *map(str, sources)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(
            subject=f"compiling {subject}",
            expected="the compiler to succeed",
            found=" ".join(done.stdout.split())[:500] or "no output",
            fix=f"run this command to see the whole output: {' '.join(command)}",
        )


def compile_once(target: Path, make: Callable[[Path], None], is_whole: Callable[[Path], bool] = is_finished) -> None:
    """If there is no library at `target` yet, call `make` to create it. Only one process at a time does this.

    Raises:
        BuildError: `make` failed, the folder is not writable, or another process has been compiling for 15 minutes.
    """
    try:
        from filelock import FileLock
    except ModuleNotFoundError as error:
        raise _without("filelock") from error
    with writing(f"compiling {target}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _acquired(FileLock(target.parent / "lock"), target):
            if not is_whole(target):
                make(target)


@contextmanager
def _acquired(lock: FileLock, target: Path) -> Iterator[None]:
    """Hold the lock in the `with` block. If another process is compiling, wait for that process first. Raise
    BuildError after 15 minutes."""
    from filelock import Timeout

    started = time.monotonic()
    while True:
        try:
            lock.acquire(timeout=EVERY)
            break
        except Timeout as error:
            waited = time.monotonic() - started
            if waited > PATIENCE:
                raise BuildError(
                    subject=f"compiling {target}",
                    expected=f"the process that is compiling this library to finish within {PATIENCE:.0f} s",
                    found="a process that is still compiling",
                    fix=f"stop that process, delete {target.parent}, and try again",
                ) from error
            report(f"waiting for another process to compile virtual-ascend: {waited:.0f} s")
    try:
        yield
    finally:
        lock.release()


def _compile(target: Path, module: Module) -> None:
    cxx = compiler()
    missing = [name for name in ("ninja", "setuptools") if not _available(name)]
    if missing:
        raise _without(" and ".join(missing))
    expected = expected_seconds()
    report(
        f"compiling virtual-ascend for this torch, once: about {expected:.0f} s on this machine at its current load"
    )
    started = time.monotonic()
    log = target.parent / "build.log"
    with work_folder(target.parent) as work:
        # In a separate process, because the build tools take seconds to import, and the module that they load in this
        # process would register its operators twice.
        program = [sys.executable, "-m", "virtual_ascend.device.compiling"]
        with log.open("w") as output:
            command = [*program, module.name, str(module.sources), str(work)]
            process = subprocess.Popen(
                command,
                env=_clean_environment(cxx),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status = _watched(process, started, expected)
        built = work / f"{module.name}.so"
        if status != 0 or not built.is_file():
            raise BuildError(
                subject="compiling virtual-ascend",
                expected="the compiler to succeed",
                found=_first_error(log.read_text(errors="replace")),
                fix=f"read the log {log}",
            )
        publish(built, target)
    log.unlink()
    report(f"compiled in {time.monotonic() - started:.0f} s")


def _watched(process: subprocess.Popen[bytes], started: float, expected: float) -> int:
    """Wait for the compiler. Now and then, report how long it has been running.

    The compiling process ends itself and its children when its stdin is closed, so it never outlives this process.
    """
    try:
        while True:
            try:
                return process.wait(EVERY)
            except subprocess.TimeoutExpired:
                report(f"still compiling: {time.monotonic() - started:.0f} s of about {expected:.0f}")
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.wait()


def expected_seconds() -> float:
    """Estimate how many seconds compiling takes, from the machine's speed and its current load."""
    cores = os.cpu_count() or 1
    # The compilers share the cores with everything that runs already.
    running = os.getloadavg()[0] + TOGETHER
    return WORK * _unit() / (TOGETHER * min(1.0, cores / running))


def _unit() -> float:
    """Return the CPU time of a short loop in seconds, which measures the machine's speed."""
    taken = []
    for _ in range(5):
        started, total = time.process_time(), 0
        for number in range(200_000):
            total += number & 3
        taken.append(time.process_time() - started)
    return min(taken)


def _without(packages: str) -> BuildError:
    return BuildError(
        subject="compiling virtual-ascend",
        found=f"missing Python packages: {packages}",
        fix=f"pip install {packages}",
    )


def _available(name: str) -> bool:
    if name == "ninja" and shutil.which("ninja"):
        return True
    return importlib.util.find_spec(name) is not None


def _clean_environment(cxx: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name != variables.NPUS.name}
    env["CXX"] = cxx
    env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    root = str(Path(__file__).parents[3])  # the folder of this package, installed or not
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (root, env.get("PYTHONPATH"))))
    scripts = sysconfig.get_path("scripts")  # pip installs ninja here, and this may not be on the PATH
    env["PATH"] = os.pathsep.join((scripts, env.get("PATH", os.defpath)))
    return env


def _first_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines()]
    errors = [line for line in lines if "error:" in line]  # the compiler's errors; Python's traceback follows them
    return (errors or lines[-1:] or ["no output"])[0]
