"""The shared libraries that compiled packages need: can the loader find them, and are they recent enough."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .elf import NotElf, SharedLibrary, read
from .site import Site

__all__ = ["Lack", "Origin", "lacks", "origin"]

_HAL = "libascend_hal.so"
_DRIVER = (_HAL, "libdrvdsmi_host.so", "libdcmi.so")
_RUNTIME = re.compile(r"lib(stdc\+\+|gcc_s|c|m|dl|rt|pthread|util|gomp|z)\.so|ld-linux|lib(torch|c10|shm|python)")
_SYMBOLS = ("libstdc++.so.6", "libc.so.6")


class Origin:
    """Whose a library is."""

    DRIVER = "the NPU's driver"
    NNAL = "nnal"
    CANN = "CANN"
    SYSTEM = "the system"


def origin(library: str) -> str:
    """Return whose a library is, one of Origin's."""
    if library in _DRIVER:
        return Origin.DRIVER
    if library.startswith(("libatb", "libasdsip", "libasdops", "liblcal", "libmki")):
        return Origin.NNAL
    # CANN's own carry no number.
    return Origin.SYSTEM if _RUNTIME.match(library) or not library.endswith(".so") else Origin.CANN


@dataclass(frozen=True, slots=True)
class Lack:
    """A library that cannot be found, or that is too old."""

    library: str
    wanted_by: str
    symbol: str = ""
    """The version of symbols that it lacks; empty if the library itself is not there."""
    places: tuple[Path, ...] = ()
    """Where the library was found."""
    elsewhere: Path | None = None
    """A newer one, which the loader finds later."""


def lacks(site: Site, files: Sequence[Path], preloaded: Sequence[Path]) -> Iterator[Lack]:
    """Yield what these files lack, and the driver's library if only libraries of CANN's need it.

    `preloaded` are folders whose libraries are loaded before, such as torch's own. What else CANN's libraries need of
    each other is not reported: they find it in ways that files alone do not show.
    """
    waiting: list[tuple[Path, tuple[str, ...]]] = [(file, ()) for file in files]
    seen = set[str]()
    while waiting:
        path, inherited = waiting.pop(0)
        try:
            library = read(path)
        except (NotElf, OSError):
            continue
        yield from _symbols(site, library, seen)
        # A library is also looked for where those that led to it are.
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
            # A library whose versions cannot be read is not held against it.
            if f"{name}:{symbol}" in seen or not provided[0] or symbol in provided[0]:
                continue
            seen.add(f"{name}:{symbol}")
            newer = next((place for place, versions in zip(found, provided, strict=True) if symbol in versions), None)
            yield Lack(name, library.path.name, symbol, tuple(found), newer)


def _provides(path: Path) -> tuple[str, ...]:
    try:
        return read(path).provides
    except (NotElf, OSError):
        return ()


def _find(site: Site, name: str, search: Sequence[str], preloaded: Sequence[Path]) -> list[Path]:
    """Return the files of that name in the order in which the loader looks."""
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
