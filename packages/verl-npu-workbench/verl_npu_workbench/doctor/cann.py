"""Checks of CANN (the software below torch_npu) and nnal (the operators below vllm-ascend), and the search for missing
shared libraries.

The requirements of a shared library are read from its ELF file, because loading the library may fail.
"""

from __future__ import annotations

import mmap
import platform
import re
import shlex
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_npu.ascend.variables import HOME, OPERATORS
from verl_npu.findings import Finding, error, ok, skipped, warning
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from ..pins import Component, parse_version
from .site import Need, Site

_TOOLKIT_HOME = "ASCEND_TOOLKIT_HOME"
_ATB_HOME = "ATB_HOME_PATH"
_USUAL = (
    "/usr/local/Ascend/ascend-toolkit/latest",
    # The published image has toolkit and nnal one folder deeper.
    "/usr/local/Ascend/cann/ascend-toolkit/latest",
    "/usr/local/Ascend/cann",
    "/usr/local/Ascend/latest",
)
_NNAL = ("/usr/local/Ascend/nnal/atb", "/usr/local/Ascend/cann/nnal/atb")
_SCRIPT = "set_env.sh"
_WHY_SOURCED = _(
    "torch_npu looks for CANN's libraries on LD_LIBRARY_PATH; without that path `import torch` fails with "
    "`libhccl.so: cannot open shared object file`"
)
_WHERE = _("in the shell that starts the job, and on each host before `ray start`")


@dataclass(frozen=True, slots=True)
class Toolkit:
    """An installation folder of CANN."""

    folder: Path
    version: str
    """The version of CANN. Empty if it is unknown."""
    named: bool
    """True if an environment variable points to this folder."""
    libraries: bool
    """True if the folder's libraries are on LD_LIBRARY_PATH."""

    @property
    def script(self) -> Path:
        """The shell script that sets up the environment for this CANN installation."""
        places = (self.folder / _SCRIPT, self.folder.parent / _SCRIPT)
        return next((place for place in places if place.is_file()), places[0])


def toolkit(site: Site) -> Toolkit | None:
    """Return the CANN installation that an environment variable points to, otherwise the CANN installation in one of
    the usual folders, or None if no CANN is found."""
    named = site.environ.get(HOME) or site.environ.get(_TOOLKIT_HOME)
    if named:
        folder = Path(named)
        return Toolkit(folder, _version(folder), True, _on_library_path(site, folder)) if folder.is_dir() else None
    for folder in (*map(site.at, _USUAL), *sorted(site.at("/usr/local/Ascend").glob("cann-*"), reverse=True)):
        if folder.is_dir():
            return Toolkit(folder, _version(folder), False, _on_library_path(site, folder))
    return None


def judge_cann(site: Site) -> Iterator[Finding]:
    """Check that CANN is installed in the version that the pin requires, and that the environment is set up for it."""
    need = Need.of(site, Component.CANN)
    name = site.environ.get(HOME) or site.environ.get(_TOOLKIT_HOME)
    if site.virtual:
        yield skipped("cann", _("not needed on virtual NPUs (SIMULATED)"))
        return
    found = toolkit(site)
    if found is None and not site.is_ascend:
        yield skipped("cann", _("no CANN, and no other Ascend software"))
    elif found is None:
        yield error(
            "cann",
            _("{home}={name}, which is not a folder").format(home=HOME, name=name)
            if name
            else _("no CANN in the environment or in /usr/local/Ascend"),
            expected=str(need) or _("a CANN toolkit"),
            why=_("torch_npu's native libraries cannot be loaded without CANN's libraries"),
            fix=_install(need),
        )
    elif not found.libraries:
        yield error(
            "cann",
            _("{version} in {folder}, but its environment is not set up").format(
                version=found.version or _("a CANN"), folder=found.folder
            ),
            expected=str(need) or _("a CANN environment that is set up"),
            why=_WHY_SOURCED,
            fix=_("source {quote}  # {where}").format(quote=shlex.quote(str(found.script)), where=_WHERE),
        )
    elif not found.named or not site.environ.get(OPERATORS):
        missing = [variable for variable in (HOME, OPERATORS) if not site.environ.get(variable)]
        yield warning(
            "cann",
            _("{version} in {folder}, without {missing}").format(
                version=found.version or _("a CANN"), folder=found.folder, missing=_(" and ").join(missing)
            ),
            expected=str(need) or _("a CANN environment that is set up"),
            why=_("CANN finds its operators through these environment variables, and verl finds the CANN version"),
            fix=_("source {quote}  # {where}").format(quote=shlex.quote(str(found.script)), where=_WHERE),
        )
    else:
        yield _judge_version(need, found)


def _judge_version(need: Need, found: Toolkit) -> Finding:
    version = parse_version(found.version) if found.version else None
    where = _("{version} in {folder}").format(version=found.version or _("unknown version"), folder=found.folder)
    if version is None or need.met_by(version):
        return ok("cann", where)
    return warning(
        "cann",
        where,
        expected=str(need),
        why=_("torch_npu, vllm-ascend, and the operators of {pin} were built and tested with this CANN").format(
            pin=need.pin
        ),
        fix=_install(need),
    )


def judge_nnal(site: Site) -> Iterator[Finding]:
    """Check that ATB, a library that vllm-ascend needs, is installed and that the environment is set up for it."""
    named = site.environ.get(_ATB_HOME, "")
    usual = _nnal(site)
    if site.virtual:
        yield skipped("nnal", _("not needed on virtual NPUs (SIMULATED)"))
    elif named and Path(named).is_dir():
        yield ok("nnal", named)
    elif site.package(Component.VLLM_ASCEND) is None:
        yield skipped(
            "nnal",
            _("not set up; only vllm-ascend needs nnal")
            if usual.is_dir()
            else _("not installed; only vllm-ascend needs nnal"),
        )
    else:
        there = usual.is_dir()
        yield warning(
            "nnal",
            _("{atb_home}={named}, which is not a folder").format(atb_home=_ATB_HOME, named=named)
            if named
            else _("{usual}, but its environment is not set up").format(usual=usual)
            if there
            else _("no nnal in {usual}").format(usual=usual),
            expected=_("the package nnal, in the same version as CANN"),
            why=_("without nnal, vllm-ascend's operators fail with `libatb.so: cannot open shared object file`"),
            fix=_("source {quote}  # {where}").format(quote=shlex.quote(str(usual / _SCRIPT)), where=_WHERE)
            if there
            else _(
                "install the nnal version that matches your CANN version, then run `source {nnal}/{script}` {where}"
            ).format(nnal=_NNAL[0], script=_SCRIPT, where=_WHERE),
        )


def _nnal(site: Site) -> Path:
    places = [site.at(place) for place in _NNAL]
    return next((place for place in places if place.is_dir()), places[0])


def _install(need: Need) -> str:
    return _("install the CANN toolkit, its kernels, and nnal{at}, or start from the image of the pin").format(
        at=need.at("CANN ")
    )


def _on_library_path(site: Site, folder: Path) -> bool:
    ours = {(folder / part).resolve() for part in ("lib64", f"{platform.machine()}-linux/lib64")}
    entries = site.environ.get("LD_LIBRARY_PATH", "").split(":")
    return any(Path(entry).resolve() in ours for entry in entries if entry)


def _version(folder: Path) -> str:
    """Return the version from the toolkit's own file, which verl reads, too, or otherwise from version.cfg or the
    folder's name."""
    for info in sorted(folder.glob("*-linux/ascend_toolkit_install.info")):
        found = re.search(r"(?m)^version=(\S+)", _text(info))
        if found:
            return found[1]
    found = re.search(r"(?m)^toolkit_running_version=\[[^:\]]*:([^\]]+)\]", _text(folder / "version.cfg"))
    if found:
        return found[1]
    name = re.fullmatch(r"(?:cann-)?(\d+\.\d+\.[\w.]+)", folder.resolve().name)
    return name[1] if name else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


_MAGIC = b"\x7fELF"
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRTAB, _RPATH, _RUNPATH = 1, 5, 15, 29
_VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF


class NotElf(ValueError):
    """Raised when a file is truncated, or is not a shared library for a 64-bit little-endian machine."""


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """The facts that the dynamic loader reads from an ELF file."""

    path: Path
    needed: tuple[str, ...]
    """The libraries that it needs."""
    search: tuple[str, ...]
    """The folders that this file tells the loader to search for libraries, with `$ORIGIN` resolved."""
    versions: Mapping[str, tuple[str, ...]]
    """The symbol versions that it needs from each library."""
    provides: tuple[str, ...]
    """The symbol versions that it defines."""


def read_elf(path: Path) -> SharedLibrary:
    """Read an ELF shared library. Raises NotElf if the file is not an ELF shared library, and OSError if the file
    cannot be read."""
    with path.open("rb") as file:
        if path.stat().st_size < 64:
            raise NotElf(path)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return _Reader(content).library(path)
            except (struct.error, IndexError, StopIteration) as error:
                raise NotElf(path) from error


class _Reader:
    def __init__(self, content: mmap.mmap) -> None:
        # A 64-bit file of little-endian byte order, as on x86_64 and aarch64.
        if content[:6] != _MAGIC + b"\x02\x01":
            raise NotElf(_("not a 64-bit little-endian ELF file"))
        self._content = content
        offset, size, count = self._unpack("<Q", 32)[0], *self._unpack("<HH", 54)
        headers = [self._unpack("<IIQQQQQQ", offset + size * index) for index in range(count)]
        self._loads = [(header[3], header[2], header[5]) for header in headers if header[0] == _LOAD]
        self._dynamic: list[tuple[int, int]] = [
            (self._unpack("<q", header[2] + step)[0], self._unpack("<Q", header[2] + step + 8)[0])
            for header in headers
            if header[0] == _DYNAMIC
            for step in range(0, header[5] - 15, 16)
        ]
        tags = dict(self._dynamic)
        self._strings = self._file_offset(tags[_STRTAB]) if _STRTAB in tags else 0
        self._tags = tags

    def library(self, path: Path) -> SharedLibrary:
        needed = tuple(self._string(value) for tag, value in self._dynamic if tag == _NEEDED)
        search = [self._string(value) for tag, value in self._dynamic if tag in (_RPATH, _RUNPATH)]
        folders = [folder for each in search for folder in each.split(":") if folder]
        origin = str(path.resolve().parent)
        resolved = tuple(f.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for f in folders)
        return SharedLibrary(path, needed, resolved, dict(self._needs()), tuple(self._defines()))

    def _needs(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the needed symbol versions from section .gnu.version_r (layout: Linux Standard Base)."""
        if _VERNEED not in self._tags:
            return
        place = self._file_offset(self._tags[_VERNEED])
        for _unused in range(self._tags.get(_VERNEEDNUM, 0)):
            _unused, count, file, auxiliary, following = self._unpack("<HHIII", place)
            names, at = [], place + auxiliary
            for _unused in range(count):
                _unused, _unused, _unused, name, onward = self._unpack("<IHHII", at)
                names.append(self._string(name))
                at += onward
            yield self._string(file), tuple(names)
            place += following

    def _defines(self) -> Iterator[str]:
        """Yield the defined symbol versions from section .gnu.version_d; the first name of an entry is the version."""
        if _VERDEF not in self._tags:
            return
        place = self._file_offset(self._tags[_VERDEF])
        for _unused in range(self._tags.get(_VERDEFNUM, 0)):
            _unused, _unused, _unused, _unused, _unused, auxiliary, following = self._unpack("<HHHHIII", place)
            yield self._string(self._unpack("<II", place + auxiliary)[0])
            place += following

    def _file_offset(self, address: int) -> int:
        return next(offset + address - start for start, offset, size in self._loads if start <= address < start + size)

    def _string(self, offset: int) -> str:
        start = self._strings + offset
        end = self._content.find(b"\0", start)
        return self._content[start:end].decode("utf-8", "replace")

    def _unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        return struct.unpack_from(layout, self._content, offset)


_HAL = "libascend_hal.so"
_DRIVER = (_HAL, "libdrvdsmi_host.so", "libdcmi.so")
_RUNTIME = re.compile(r"lib(stdc\+\+|gcc_s|c|m|dl|rt|pthread|util|gomp|z)\.so|ld-linux|lib(torch|c10|shm|python)")
_SYMBOLS = ("libstdc++.so.6", "libc.so.6")


class Origin:
    """The components that can provide a library."""

    DRIVER = _("the NPU's driver")
    NNAL = "nnal"
    CANN = "CANN"
    SYSTEM = _("the system")


def origin(library: str) -> str:
    """Return the component that provides a library, as one of the values in Origin."""
    if library in _DRIVER:
        return Origin.DRIVER
    if library.startswith(("libatb", "libasdsip", "libasdops", "liblcal", "libmki")):
        return Origin.NNAL
    # CANN's own libraries have no number after .so.
    return Origin.SYSTEM if _RUNTIME.match(library) or not library.endswith(".so") else Origin.CANN


@dataclass(frozen=True, slots=True)
class Lack:
    """A library that cannot be found, or that is too old for the file that needs it."""

    library: str
    wanted_by: str
    symbol: str = ""
    """The symbol version that is missing from the library. Empty if the library itself is missing."""
    places: tuple[Path, ...] = ()
    """The places where the library was found."""
    elsewhere: Path | None = None
    """A newer copy of the library that comes later in the loader's search order."""


def lacks(site: Site, files: Sequence[Path], preloaded: Sequence[Path]) -> Iterator[Lack]:
    """Yield the missing libraries that these files need.

    A library that is needed only indirectly, through another library, is reported only if it belongs to the driver.
    CANN's libraries find each other in ways that their ELF files do not show. `preloaded` are folders whose libraries
    are already loaded, such as torch's own.
    """
    waiting: list[tuple[Path, tuple[str, ...]]] = [(file, ()) for file in files]
    seen = set[str]()
    while waiting:
        path, inherited = waiting.pop(0)
        try:
            library = read_elf(path)
        except (NotElf, OSError):
            continue
        yield from _symbols(site, library, seen)
        # The loader also searches the folders of the libraries that led to this one.
        search = (*library.search, *inherited)
        for name in library.needed:
            if name in seen or origin(name) == Origin.SYSTEM:
                continue
            seen.add(name)
            found = _find(site, name, search, preloaded)
            if found:
                waiting.append((found[0], search))
            elif path in files or name == _HAL:
                yield Lack(name, path.name)


def _symbols(site: Site, library: SharedLibrary, seen: set[str]) -> Iterator[Lack]:
    for name in _SYMBOLS:
        needed = library.versions.get(name, ())
        found = _find(site, name, library.search, ())
        if not needed or not found:
            continue
        provided = [_provides(place) for place in found]
        for symbol in needed:
            # Report nothing if the versions of the found library cannot be read.
            if f"{name}:{symbol}" in seen or not provided[0] or symbol in provided[0]:
                continue
            seen.add(f"{name}:{symbol}")
            newer = next((place for place, versions in zip(found, provided, strict=True) if symbol in versions), None)
            yield Lack(name, library.path.name, symbol, tuple(found), newer)


def _provides(path: Path) -> tuple[str, ...]:
    try:
        return read_elf(path).provides
    except (NotElf, OSError):
        return ()


def _find(site: Site, name: str, search: Sequence[str], preloaded: Sequence[Path]) -> list[Path]:
    """Return the files with that name, in the loader's search order."""
    library_path = [entry for entry in site.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    folders = [*map(Path, search), *map(Path, library_path), *preloaded, site.prefix / "lib", *_system(site)]
    found = dict.fromkeys(folder / name for folder in folders if (folder / name).is_file())
    return list(found)


def _system(site: Site) -> Iterator[Path]:
    machine = f"{platform.machine()}-linux-gnu"
    for line in _configured(site, site.at("/etc/ld.so.conf")):
        yield site.at(line)
    for folder in (f"/lib/{machine}", f"/usr/lib/{machine}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"):
        yield site.at(folder)


def _configured(site: Site, file: Path, depth: int = 3) -> Iterator[str]:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        text = line.partition("#")[0].strip()
        if text.startswith("include ") and depth:
            pattern = text.removeprefix("include ").strip()
            folder = site.at(pattern).parent if pattern.startswith("/") else file.parent / Path(pattern).parent
            for each in sorted(folder.glob(Path(pattern).name)):
                yield from _configured(site, each, depth - 1)
        elif text.startswith("/"):
            yield text


_DRIVER_FOLDERS = ("/usr/local/Ascend/driver/lib64/driver", "/usr/local/Ascend/driver/lib64/common")
_FILES = {
    Component.TORCH_NPU: ("torch_npu/_C.*.so", "torch_npu/lib/libtorch_npu.so"),
    Component.VLLM_ASCEND: ("vllm_ascend/vllm_ascend_C*.so", "vllm_ascend/*.so"),
}


def judge_loadable(site: Site) -> Iterator[Finding]:
    """Check whether torch_npu and vllm-ascend can be loaded. Yield one finding for each package. If a library is
    missing, the finding names the first missing library and the component that provides the library."""
    for component, patterns in _FILES.items():
        name = f"{component.value}-libraries"
        package = site.package(component)
        if package is None:
            yield skipped(name, _("not installed"))
            continue
        files = sorted({file for pattern in patterns for file in package.folder.glob(pattern)})
        if site.virtual:
            yield skipped(name, _("not needed on virtual NPUs (SIMULATED)"))
        elif not files:
            yield skipped(
                name,
                _("{component} {version} has no compiled files to examine").format(
                    component=component.value, version=package.version
                ),
            )
        else:
            yield _judge(site, name, component, files)


def _judge(site: Site, name: str, component: Component, files: list[Path]) -> Finding:
    torch = site.package(Component.TORCH)
    torch_npu = site.package(Component.TORCH_NPU)
    preloaded = [torch.folder / "torch" / "lib"] if torch else []
    preloaded += [torch_npu.folder / "torch_npu" / "lib"] if torch_npu else []
    found = list(lacks(site, files, preloaded))
    absent = [lack for lack in found if not lack.symbol]
    old = [lack for lack in found if lack.symbol]
    if absent:
        # One missing file shows the cause; CANN's libraries come before the driver's, which they load.
        first = absent[0]
        others = _(", and {count} more").format(count=len(absent) - 1) if len(absent) > 1 else ""
        whose, fix = explain(site, first.library)
        # If CANN is set up, torch_npu may have loaded CANN's library earlier.
        cann = toolkit(site)
        perhaps = component is Component.VLLM_ASCEND and whose == Origin.CANN and cann is not None and cann.libraries
        judge = warning if perhaps else error
        return judge(
            name,
            _("no {library}{others}, which {wanted_by} needs").format(
                library=first.library, others=others, wanted_by=first.wanted_by
            ),
            expected=_("{library} from {whose}").format(library=first.library, whose=whose),
            why=_("`import {component}` fails with `{library}: cannot open shared object file`").format(
                component=component.value.replace("-", "_"), library=first.library
            ),
            fix=fix,
        )
    certain = [lack for lack in old if lack.elsewhere is None]
    if old:
        return _too_old(name, (certain or old)[0])
    return ok(
        name,
        ngettext(
            "{count} compiled file, all libraries found", "{count} compiled files, all libraries found", len(files)
        ).format(count=len(files)),
    )


def _too_old(name: str, lack: Lack) -> Finding:
    place = lack.places[0]
    found = _("no {symbol} in {place}, although {wanted_by} needs this version").format(
        place=place, symbol=lack.symbol, wanted_by=lack.wanted_by
    )
    needed = _("a {library} with {symbol}").format(library=lack.library, symbol=lack.symbol)
    why = _("the import fails with `version `{symbol}' not found`").format(symbol=lack.symbol)
    if lack.elsewhere is not None:
        # Which of the two is loaded depends on the order in which the process loads libraries.
        fix = f"export LD_LIBRARY_PATH={shlex.quote(str(lack.elsewhere.parent))}:$LD_LIBRARY_PATH"
        return warning(name, found, expected=needed, why=why, fix=fix)
    if lack.library.startswith("libstdc++"):
        fix = _("conda install -c conda-forge libstdcxx-ng  # or use an image with a newer GCC")
    else:
        fix = _("use an image with a newer system, such as the one in the pin's Dockerfile")
    return error(name, found, expected=needed, why=why, fix=fix)


def explain(site: Site, library: str) -> tuple[str, str]:
    """Return the component that provides a missing library, and the command that puts the library on the loader's
    search path."""
    whose = origin(library)
    if whose == Origin.DRIVER:
        folders = [str(site.at(folder)) for folder in _DRIVER_FOLDERS if site.at(folder).is_dir()]
        if folders:
            return whose, f"export LD_LIBRARY_PATH={':'.join(folders)}:$LD_LIBRARY_PATH"
        return whose, _("docker run -v /usr/local/Ascend/driver:/usr/local/Ascend/driver …  # or install the driver")
    if whose == Origin.NNAL:
        return whose, f"source {shlex.quote(str(_nnal(site) / _SCRIPT))}"
    found = toolkit(site)
    if found is None:
        return whose, _("install the CANN toolkit and its kernels, then source its set_env.sh")
    return whose, f"source {shlex.quote(str(found.script))}"
