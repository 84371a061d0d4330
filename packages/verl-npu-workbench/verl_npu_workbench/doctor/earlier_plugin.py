"""Finds traces of an earlier plugin that has the same name as this package, and reports how to switch to this package.

The earlier plugin is MindSpeed-RL's: the distribution `verl_npu` 0.0.1 with a package `verl_npu`. Its setup.py edits
installed files of verl and vLLM: https://github.com/Ascend/MindSpeed-RL, v2.2.0, rl-plugin/setup.py.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from verl_npu.findings import Finding, error, ok, warning
from verl_npu.language import gettext as _

from .site import Site, distribution_url

NAME = "verl-npu"
OURS = "CHECKOUT_OR_WHEEL_OF_VERL_NPU"
"""The placeholder for verl-npu in a printed command. verl-npu is in no package index, and anybody could register its
name there, so the command must not install it by name."""
_VERSION = "0.0.1"
_PACKAGE = "verl_npu"
_SWITCH_COMMAND = f"pip uninstall -y {_PACKAGE} && pip install {OURS}"


@dataclass(frozen=True, slots=True)
class Trace:
    """Something that the earlier plugin left behind, such as a file or an edit of another package."""

    found: str
    why: str
    fix: str
    fails: bool = False
    """True if the earlier plugin itself may be active. False if only its edits to other packages remain."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """An edit that the earlier plugin's setup.py makes to a file of another package."""

    package: str
    file: str
    what: str
    is_in: Callable[[str], bool]


def _has_hook(text: str) -> bool:
    return re.search(r"(?mi)^# NPU acceleration support added by mindspeed[- ]rl plugin$", text) is not None


def _lacks_kernels(text: str) -> bool:
    return re.search(r"(?m)^# +from \. import kernels$", text) is not None


def _has_renamed_lists(text: str) -> bool:
    """Return whether every `list` in a file was renamed to `List`, whether or not `List` was also added to the end of
    the import from typing."""
    imported = re.search(r"(?m)^from typing import (Any, Callable\b.*)$", text)
    if imported is None:
        return "List[" in text and re.search(r"(?m)^(from typing import .*\bList\b|[ \t]+List,)", text) is None
    names = imported[1].split(", ")
    return names[-1] == "List" and (names != sorted(names) or "list" not in text)


_EDITS = (
    _Edit("verl", "__init__.py", f"imports {_PACKAGE} at its end", _has_hook),
    _Edit(
        "verl", "utils/kernel/linear_cross_entropy.py", _("`from . import kernels` is commented out"), _lacks_kernels
    ),
    _Edit("vllm", "model_executor/layers/quantization/utils/fp8_utils.py", _("`list` is `List`"), _has_renamed_lists),
    _Edit("vllm", "model_executor/layers/fused_moe/fused_moe.py", _("`list` is `List`"), _has_renamed_lists),
)
_WHY = {
    "verl": _(
        "if no {package} is installed, `import verl` fails, and the fused kernels lack `kernels`; if "
        "this {package} is installed, the line imports this package and does no harm"
    ).format(package=_PACKAGE),
    "vllm": _("the earlier plugin replaced every `list` by `List`, even in names and texts"),
}


def judge_earlier_plugin(site: Site) -> Iterator[Finding]:
    """Check that the earlier plugin is not installed, and that it left no edits in other packages' files."""
    traces = find_traces(site)
    for trace in traces:
        report = error if trace.fails else warning
        yield report(
            "earlier-plugin", trace.found, expected=_("no trace of the earlier plugin"), why=trace.why, fix=trace.fix
        )
    if not traces:
        yield ok("earlier-plugin", _hook_line(site) or _("no trace of the earlier plugin"))


def find_traces(site: Site) -> list[Trace]:
    """Return everything that the earlier plugin left behind in an environment."""
    places = _places(site)
    return [
        *_packages(site, places),
        *_edited("verl", _folder(site, "verl", places), site),
        *_edited("vllm", _folder(site, "vllm", places), site),
    ]


def is_earlier(distribution: metadata.Distribution) -> bool:
    """Return whether a distribution named verl-npu is MindSpeed-RL's earlier plugin and not this package."""
    return distribution.version == _VERSION and not distribution.entry_points


def _places(site: Site) -> list[Path]:
    # verl-npu may run without PYTHONPATH (python -I), but the job has PYTHONPATH in front of its path.
    named = [*site.environ.get("PYTHONPATH", "").split(os.pathsep), *site.path]
    return [Path(each) for each in dict.fromkeys(named) if each]


def _packages(site: Site, places: Sequence[Path]) -> Iterator[Trace]:
    installed = {
        Path(str(each.locate_file(""))): _("distribution {package} {version}").format(
            package=_PACKAGE, version=each.version
        )
        for each in metadata.distributions(name=NAME, path=list(map(str, places)))
        if is_earlier(each)
    }
    ours = [place for place in places if (place / _PACKAGE / "activation.py").is_file()]
    folders = [place for place in places if (place / _PACKAGE / "plugin.py").is_file()]
    why = _("both plugins have the same name: Python imports the first on its path, and pip confuses the two")
    for place in folders:
        package = place / _PACKAGE
        if place in ours:
            fix = f"pip uninstall -y {_PACKAGE}; rm -r {shlex.quote(str(package))}; pip install {OURS}"
            yield Trace(
                _("{package} has files of the earlier plugin and of this package").format(package=package),
                why,
                fix,
                fails=True,
            )
            continue
        first = not ours or places.index(place) < places.index(ours[0])
        by, fix = _way_in(site, place, places)
        what = (
            _("the earlier plugin ({installed})").format(installed=installed[place])
            if place in installed
            else _("the earlier plugin")
        )
        yield Trace(
            (
                _("{package}, {what}, is on Python's path{by}, before this package")
                if first
                else _("{package}, {what}, is on Python's path{by}, after this package")
            ).format(package=package, what=what, by=by),
            why,
            fix,
            first,
        )
    for place, what in installed.items():
        if place not in folders:
            yield Trace(
                _("the earlier plugin ({what}) is installed in {place}").format(what=what, place=place),
                why,
                _SWITCH_COMMAND,
                fails=True,
            )


def _way_in(site: Site, place: Path, places: Sequence[Path]) -> tuple[str, str]:
    """Return how a folder got onto Python's path, if that is known, and the command that removes it from there."""
    if str(place) in site.environ.get("PYTHONPATH", "").split(os.pathsep):
        return _(" by PYTHONPATH"), _("remove {place} from PYTHONPATH").format(place=place)
    for folder in places:
        for file in sorted(folder.glob("*.pth")) if folder.is_dir() else ():
            if str(place) in file.read_text(errors="replace").splitlines():
                return _(" by {file}").format(file=file), _SWITCH_COMMAND
    return "", _SWITCH_COMMAND


def _folder(site: Site, package: str, places: Sequence[Path]) -> Path | None:
    installed = site.packages.get(package)
    beside = [installed.folder] if installed is not None else []
    return next((each / package for each in (*places, *beside) if (each / package / "__init__.py").is_file()), None)


def _edited(package: str, folder: Path | None, site: Site) -> Iterator[Trace]:
    if folder is None:
        return
    edits = [each for each in _EDITS if each.package == package and each.is_in(_text(folder / each.file))]
    if edits:
        files = [each.file for each in edits]
        found = _(", ").join(f"{package}/{each.file} ({each.what})" for each in edits)
        fix = _restoration(site, package, folder, files)
        yield Trace(
            _("the earlier plugin edited in {parent}: {found}").format(parent=folder.parent, found=found),
            _WHY[package],
            fix,
        )


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _restoration(site: Site, package: str, folder: Path, files: Sequence[str]) -> str:
    """Return the command that restores the original files of a package."""
    checkout = folder.parent
    named = shlex.join(f"{package}/{file}" for file in files)
    if (checkout / ".git").exists():
        return f"git -C {shlex.quote(str(checkout))} checkout -- {named}"
    installed = site.packages.get(package)
    url = distribution_url(package, [str(checkout)])
    # Development versions, and those with a builder's local mark, are in no package index.
    if url or (installed is not None and re.fullmatch(r"[\d.]+(\.post\d+)?(\+empty)?", installed.version)):
        version, _unused, built = installed.version.partition("+") if installed else ("", "", "")
        empty = "VLLM_TARGET_DEVICE=empty " if built else ""
        source = shlex.quote(url) if url else f"{'--no-binary vllm ' if built else ''}{package}=={version}"
        return f"{empty}pip install --force-reinstall --no-deps {source}"
    return _("restore {named} from the installed revision of {package}").format(named=named, package=package)


def _hook_line(site: Site) -> str:
    """Return a sentence about a hand-written line that imports this package, with the line's location, or an empty
    string if there is no such line."""
    folder = _folder(site, "verl", _places(site))
    for number, line in enumerate(_text(folder / "__init__.py").splitlines() if folder else (), 1):
        if re.match(rf"\s*import {_PACKAGE}\b", line):
            return _(
                "no trace of the earlier plugin; the line in {folder}/__init__.py:{number} imports this package"
            ).format(folder=folder, number=number)
    return ""
