"""Reads which libraries, symbols, and operators (looked up by name) an installed torch_npu needs from CANN."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BuildError

# The libraries of every Linux. Symbols that these do not define come from elsewhere.
_SYSTEM = ("libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1")
_OTHER_LIBRARIES = (*_SYSTEM, "ld-linux", "libc10", "libtorch", "libshm", "libgomp", "libpython")


@dataclass(frozen=True, slots=True)
class Needs:
    """The libraries and names that one torch_npu version needs from CANN."""

    libraries: tuple[str, ...]
    """The names under which they are loaded."""
    symbols: tuple[str, ...]
    """The symbols that neither the wheel, nor torch, nor the system defines."""
    operators: tuple[str, ...]
    """The names `aclnn…` that the wheel looks up when an operator is called."""


def read_needs(package: Path, torch_libraries: Path) -> Needs:
    """Read which libraries, symbols, and operators the torch_npu in `package` needs from CANN. The result omits what
    torch's own libraries in `torch_libraries` provide.

    Raises:
        BuildError: binutils (`nm` and `readelf`), which are installed with a compiler, are missing.
    """
    own = sorted(package.rglob("*.so*"))
    beside = sorted(torch_libraries.glob("*.so*"))
    defined: set[str] = set()
    for library in (*own, *beside, *_system_libraries()):
        defined |= _symbols(library, "--defined-only")
    symbols = {symbol for library in own for symbol in _undefined(library)} - defined
    there = {library.name for library in (*own, *beside)}
    libraries = {name for library in own for name in _needed(library)} - there
    operators = {name for library in own for name in _operators(library)}
    return Needs(
        tuple(sorted(name for name in libraries if not name.startswith(_OTHER_LIBRARIES))),
        tuple(sorted(symbol for symbol in symbols if not symbol.startswith(("Py", "_Py", "__")))),
        tuple(sorted(operators)),
    )


def defined_in(library: Path) -> set[str]:
    """Return the names that a library or an object file exports.

    Raises:
        BuildError: binutils are missing.
    """
    names = set()
    for line in _run("nm", "--defined-only", "--extern-only", str(library)).splitlines():
        names.add(line.split()[-1].partition("@")[0])
    return names


def _operators(library: Path) -> Iterable[str]:
    names = {match.decode() for match in re.findall(rb"\baclnn[A-Z]\w+", library.read_bytes())}
    return {name.removesuffix("GetWorkspaceSize") for name in names}


def _undefined(library: Path) -> set[str]:
    return _symbols(library, "--undefined-only")


def _symbols(library: Path, which: str) -> set[str]:
    found = set()
    for line in _run("nm", "-D", which, str(library)).splitlines():
        *_, kind, name = line.split()
        if kind not in ("w", "v"):  # a weak symbol may stay undefined
            found.add(name.partition("@")[0])
    return found


def _needed(library: Path) -> set[str]:
    return set(re.findall(r"\(NEEDED\)[^\n\[]{0,100}\[([^\]\n]{1,300})\]", _run("readelf", "-dW", str(library))))


def _system_libraries() -> list[Path]:
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    folders = [Path(root) / multiarch for root in ("/lib", "/usr/lib")] + [Path("/lib64"), Path("/usr/lib64")]
    found = [next((folder / name for folder in folders if (folder / name).exists()), None) for name in _SYSTEM]
    return [path for path in found if path is not None]


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise BuildError(
            subject="virtual NPUs with the installed torch_npu",
            found=f"the program {command[0]} is not installed",
            fix="install binutils, for example with apt-get install binutils",
        ) from None
    except subprocess.CalledProcessError as error:
        raise BuildError(
            subject=f"reading {command[-1]}",
            expected="an intact torch_npu library",
            found=" ".join(str(error.stderr).split())[:300] or f"status {error.returncode}",
            fix="reinstall torch_npu",
        ) from error
