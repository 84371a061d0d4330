"""CANN, the software below torch_npu, and nnal, the operators below vllm-ascend: which is there, and is it set up."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..ascend.matrix import Component, parse_version
from ..ascend.variables import HOME, OPERATORS
from .finding import Finding, error, ok, skipped, warning
from .need import Need
from .site import Site

__all__ = ["Toolkit", "judge_cann", "judge_nnal", "toolkit"]

_TOOLKIT_HOME = "ASCEND_TOOLKIT_HOME"
_ATB_HOME = "ATB_HOME_PATH"
_USUAL = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann", "/usr/local/Ascend/latest")
_NNAL = "/usr/local/Ascend/nnal/atb"
_SCRIPT = "set_env.sh"
_WHY_SOURCED = (
    "torch_npu looks for CANN's libraries on LD_LIBRARY_PATH; without them `import torch` ends with "
    "`libhccl.so: cannot open shared object file`"
)
_WHERE = "in the shell that starts the job, and on each host before `ray start`"


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A CANN folder."""

    folder: Path
    version: str
    """Empty if it does not say."""
    named: bool
    """Whether the environment names it."""
    libraries: bool
    """Whether LD_LIBRARY_PATH has its libraries."""

    @property
    def script(self) -> Path:
        """The script that sets the environment up."""
        places = (self.folder / _SCRIPT, self.folder.parent / _SCRIPT)
        return next((place for place in places if place.is_file()), places[0])


def toolkit(site: Site) -> Toolkit | None:
    """Return the CANN that the environment names, else one at a usual place; None if there is none."""
    named = site.environ.get(HOME) or site.environ.get(_TOOLKIT_HOME)
    if named:
        folder = Path(named)
        return Toolkit(folder, _version(folder), True, _on_library_path(site, folder)) if folder.is_dir() else None
    for folder in (*map(site.at, _USUAL), *sorted(site.at("/usr/local/Ascend").glob("cann-*"), reverse=True)):
        if folder.is_dir():
            return Toolkit(folder, _version(folder), False, _on_library_path(site, folder))
    return None


def judge_cann(site: Site) -> Iterator[Finding]:
    """Whether there is a CANN, whether the environment is set up for it, and whether its version is the pin's."""
    need = Need.of(site, Component.CANN)
    name = site.environ.get(HOME) or site.environ.get(_TOOLKIT_HOME)
    if site.virtual:
        yield skipped("cann", "not needed on virtual NPUs (SIMULATED)")
        return
    found = toolkit(site)
    if found is None and not site.is_ascend:
        yield skipped("cann", "none, and nothing else of Ascend's is here")
    elif found is None:
        yield error(
            "cann",
            f"{HOME}={name}, which is no folder" if name else "no CANN in the environment or in /usr/local/Ascend",
            needed=str(need) or "a CANN toolkit",
            why="torch_npu's compiled part is linked against CANN's libraries and cannot be loaded without them",
            fix=_install(need),
        )
    elif not found.libraries:
        yield error(
            "cann",
            f"{found.version or 'a CANN'} in {found.folder}, and its environment is not set up",
            needed=str(need) or "an environment that is set up",
            why=_WHY_SOURCED,
            fix=f"source {shlex.quote(str(found.script))}  # {_WHERE}",
        )
    elif not found.named or not site.environ.get(OPERATORS):
        missing = [variable for variable in (HOME, OPERATORS) if not site.environ.get(variable)]
        yield warning(
            "cann",
            f"{found.version or 'a CANN'} in {found.folder}, without {' and '.join(missing)}",
            needed=str(need) or "an environment that is set up",
            why="CANN finds its operators, and verl its version, by these variables",
            fix=f"source {shlex.quote(str(found.script))}  # {_WHERE}",
        )
    else:
        yield _judge_version(need, found)


def _judge_version(need: Need, found: Toolkit) -> Finding:
    version = parse_version(found.version) if found.version else None
    where = f"{found.version or 'version not told'} in {found.folder}"
    if version is None or need.met_by(version):
        return ok("cann", where)
    return warning(
        "cann",
        where,
        needed=str(need),
        why=f"torch_npu, vllm-ascend and the operators of {need.pin} were built and tested with these",
        fix=_install(need),
    )


def judge_nnal(site: Site) -> Iterator[Finding]:
    """Whether the library ATB, which vllm-ascend needs, is there and set up."""
    named = site.environ.get(_ATB_HOME, "")
    usual = site.at(_NNAL)
    if site.virtual:
        yield skipped("nnal", "not needed on virtual NPUs (SIMULATED)")
    elif named and Path(named).is_dir():
        yield ok("nnal", named)
    elif site.package(Component.VLLM_ASCEND) is None:
        yield skipped("nnal", f"{'not set up' if usual.is_dir() else 'none'}; it is vllm-ascend that needs it")
    else:
        there = usual.is_dir()
        yield warning(
            "nnal",
            f"{_ATB_HOME}={named}, which is no folder"
            if named
            else f"{usual}, and its environment is not set up"
            if there
            else f"none in {usual}",
            needed="nnal of the same version as CANN",
            why="vllm-ascend's operators end with `libatb.so: cannot open shared object file` without it",
            fix=f"source {shlex.quote(str(usual / _SCRIPT))}  # {_WHERE}"
            if there
            else f"install nnal of CANN's version, then `source {_NNAL}/{_SCRIPT}` {_WHERE}",
        )


def _install(need: Need) -> str:
    return f"install the CANN toolkit, its kernels and nnal{need.at('CANN ')}, or start from the image of the pin"


def _on_library_path(site: Site, folder: Path) -> bool:
    ours = {(folder / part).resolve() for part in ("lib64", f"{platform.machine()}-linux/lib64")}
    entries = site.environ.get("LD_LIBRARY_PATH", "").split(":")
    return any(Path(entry).resolve() in ours for entry in entries if entry)


def _version(folder: Path) -> str:
    """As verl reads it from the toolkit; else from version.cfg, else from the name of the folder."""
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
