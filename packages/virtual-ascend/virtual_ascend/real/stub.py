"""The stub CANN for one torch_npu: libraries that are generated from the symbols that the wheel needs, and that are
compiled once per machine."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from .. import faults, soc
from ..cache import check_owner, is_finished, publish, unloadable, work_folder
from ..device import build
from ..errors import BuildError
from ..hccl.library import sources as hccl_sources
from ..reporting import report
from ..settings import Settings
from . import wheel

CORE = "libvirtual_ascend_cann.so"
"""The library with all functions. The other libraries have CANN's names and only refer to this one."""
_HCCL = "libhccl.so"
_LISTED = "libraries.json"
_OPERATORS = "libopapi.so"  # torch_npu looks it up when an operator is called, so no library names it
_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-pthread", "-w")

# torch_npu looks these up with dlsym, and calls them without checking the result.
_LOOKED_UP = (
    "InitHugeMemThreadLocal",
    "ReleaseHugeMem",
    "UnInitHugeMemThreadLocal",
    "aclSetCompileopt",
    "aclopCompileAndExecuteV2",
    "aclrtCtxSetSysParamOpt",
    "aclrtGetStreamOverflowSwitch",
    "aclrtSetDeviceSatMode",
    "aclrtSetOpExecuteTimeOut",
    "aclrtSetOpWaitTimeout",
    "aclrtSetStreamFailureMode",
    "aclrtSetStreamOverflowSwitch",
    "aclrtSetSysParamOpt",
)
# The prefixes of C++ tables and type descriptions; everything else is a function.
_DATA = ("_ZTV", "_ZTI", "_ZTS")


def build_stub(package: Path, cache: Path) -> Path:
    """Return the folder of the stub CANN for the torch_npu in `package`. Compiling it, if necessary, takes about 6 s.

    Raises:
        BuildError: there is no compiler, or it failed.
    """
    folder = cache / f"cann-{platform.machine()}-{key(package)}"
    core = folder / CORE
    if not _is_whole(core):
        build.compile_once(core, lambda target: _build(package, target.parent), _is_whole)
    check_owner(core)
    return folder


def _is_whole(core: Path) -> bool:
    """Return whether all libraries of a stub are finished. Its core is built last."""
    return is_finished(core) and all(map(is_finished, _libraries(core.parent)))


def _libraries(folder: Path) -> list[Path]:
    """Return the libraries with CANN's names. If their list is damaged, return a path that is no finished library."""
    try:
        return [folder / name for name in json.loads((folder / _LISTED).read_text())]
    except (OSError, ValueError, TypeError):
        return [folder / _LISTED]


class _Core:
    """The stub's functions for faults, under the same names as in our compiled device."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def die_at_collective(self, collective: int, rank: int) -> None:
        self._library.virtual_ascend_cann_die_at_collective(ctypes.c_int64(collective), rank)

    def slow_collectives(self, seconds: float, rank: int) -> None:
        self._library.virtual_ascend_cann_slow_collectives(ctypes.c_double(seconds), rank)

    def limit_bandwidth(self, gigabytes_per_second: float, rank: int) -> None:
        self._library.virtual_ascend_cann_limit_bandwidth(ctypes.c_double(gigabytes_per_second), rank)

    def fail_allocation(self, allocation: int, rank: int) -> None:
        self._library.virtual_ascend_cann_fail_allocation(ctypes.c_int64(allocation), rank)

    def fail_allocations_above(self, size: int, rank: int) -> None:
        self._library.virtual_ascend_cann_fail_allocations_above(ctypes.c_int64(size), rank)


def load(folder: Path, settings: Settings) -> None:
    """Load the stub CANN into this process, before torch_npu looks for CANN's libraries."""
    core = _loaded(folder / CORE)
    core.virtual_ascend_cann_configure(
        settings.devices,
        ctypes.c_uint64(int(settings.memory * (1 << 30))),
        soc.NAME.encode(),
        settings.cann_version.encode(),
    )
    faults.install(_Core(core), settings.faults)
    # When torch_npu asks for `libascendcl.so`, a library of that name must be loaded.
    for library in _libraries(folder):
        _loaded(library)


def _loaded(library: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise unloadable(library, str(error)) from error


def key(package: Path) -> str:
    """Return a hash of all that a stub depends on: the wheel's main libraries, and our sources."""
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for source in (*sorted(_SOURCES.glob("*")), *_bodies(), *hccl_sources(), Path(__file__), Path(wheel.__file__)):
        if source.is_file():
            digest.update(source.read_bytes())
    # Only two folders, because walking through a wheel's thousands of files would add 10 ms to each start of Python.
    for library in (*sorted(package.glob("*.so*")), *sorted(package.glob("lib/*.so*"))):
        digest.update(f"{library.name} {library.stat().st_size}".encode())
    return digest.hexdigest()[:16]


def _bodies() -> list[Path]:
    faults = build.DEVICE.sources / "faults.cpp"
    return [*(_SOURCES / f"{name}.cpp" for name in ("copies", "runtime", "streams", "tensors")), faults]


def _build(package: Path, folder: Path) -> None:
    with work_folder(folder) as work:
        _build_in(package, work, folder)


def _build_in(package: Path, work: Path, folder: Path) -> None:
    report("building a stub of CANN for the installed torch_npu, once (about 10 s) ...")
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        raise BuildError(
            subject="a virtual Ascend for the real torch_npu",
            found="torch is not installed in the environment that has torch_npu",
            fix="install the torch that this torch_npu requires",
        )
    needs = wheel.read_needs(package, Path(torch.origin).parent / "lib")
    _link(work / _HCCL, [_SOURCES / "hccl.cpp"])
    bodies = []
    for source in _bodies():
        bodies.append(work / f"{source.stem}.o")
        build.run_compiler(bodies[-1], [source], (*_FLAGS, "-c"), bodies[-1].name)
    answered = {name for library in (*bodies, work / _HCCL) for name in wheel.defined_in(library)}
    answers = work / "answers.cpp"
    answers.write_text(_answers(needs, answered))
    _link(work / CORE, [*bodies, answers])
    names = sorted({*needs.libraries, "libascendcl.so", _OPERATORS} - {_HCCL})
    empty = work / "empty.cpp"
    empty.write_text("")
    for name in names:
        _link(work / name, [empty], "-Wl,--no-as-needed", f"-L{work}", f"-l:{CORE}", "-Wl,-rpath,$ORIGIN")
    for name in (*names, _HCCL):
        publish(work / name, folder / name)
    (folder / _LISTED).write_text(json.dumps([_HCCL, *names]))
    # The core comes last, because its presence means that all libraries are there.
    publish(work / CORE, folder / CORE)


def _answers(needs: wheel.Needs, answered: set[str]) -> str:
    """Return the source of a function for each name without a body. It returns 0, and reports that if asked to."""
    asked = {*needs.symbols, *_LOOKED_UP}
    for operator in needs.operators:
        asked |= {operator, f"{operator}GetWorkspaceSize"}
    asked -= answered
    lines = ['#include "%s"' % (_SOURCES / "cann.h"), 'extern "C" {']
    for name in sorted(asked):
        if name.startswith(_DATA):
            lines.append(f"char {name}[512];")
        elif re.fullmatch(r"\w+", name):
            lines.append(_function(name))
    return "\n".join([*lines, "}", ""])


def _function(name: str) -> str:
    says = f'return virtual_ascend_cann_unanswered("{name}");'
    if name.startswith("aclnn") and not name.endswith("GetWorkspaceSize"):
        # The second step of an operator gets a stream. The CPU computes the operator after the work on that stream.
        return f"int {name}(void*, uint64_t, void*, void* stream) {{ virtual_ascend_cann_settle(stream); {says} }}"
    return f"int {name}() {{ {says} }}"


def _link(library: Path, sources: Sequence[Path], *options: str) -> None:
    flags = (*_FLAGS, "-shared", f"-Wl,-soname,{library.name}", *options)
    build.run_compiler(library, sources, flags, library.name)
