"""The upstreams for commands: the source that the user names, and the locks."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..errors import SourceError
from ..features import UPSTREAMS, load, locks_folder
from ..language import gettext as _
from ..registry.judge.lock import Lock, read_locks
from ..registry.judge.verdict import judge
from ..registry.source.tree import SourceTree
from . import terminal

INSTALLED = "installed"
_TRAINER_REQUIREMENTS = {
    "hydra": "hydra-core",
    "omegaconf": "omegaconf",
    "ray": "ray",
    "tensordict": "tensordict",
    "torch": "torch",
    "transformers": "transformers",
    "yaml": "PyYAML",
}
"""The packages without which no trainer of verl can be imported, by their modules."""


def missing_packages() -> list[str]:
    """Return the required packages that are missing in this environment, where a job would end at its start."""
    return [package for module, package in _TRAINER_REQUIREMENTS.items() if importlib.util.find_spec(module) is None]


def print_missing(packages: Sequence[str]) -> None:
    """Print the packages that a job in this environment would miss; nothing if there are none."""
    if packages:
        terminal.paragraph(
            _("{packages} not installed: a job in {prefix} ends with an ImportError").format(
                packages=_(", ").join(packages), prefix=sys.prefix
            ),
            label=_("note: "),
            indent="  ",
        )


def tree(source: str) -> SourceTree:
    """Return the installed upstreams, with verl from `source` if that is a checkout or a wheel."""
    found = SourceTree.installed([package for upstream in UPSTREAMS for package in upstream.packages])
    if source == INSTALLED:
        return found
    return found.with_packages(SourceTree.at(Path(source), UPSTREAMS[0].packages))


def judged_tree(source: str) -> SourceTree:
    """Return the same tree as `tree`. Raises SourceError if it has no verl, because there would be nothing to
    judge."""
    found = tree(source)
    first = UPSTREAMS[0].name
    if source == INSTALLED and first not in found:
        raise SourceError(
            subject=first,
            expected=_("{first} in this environment, or a checkout or a wheel of {first}").format(first=first),
            found=_("no package named {name}").format(name=first),
            fix=_("install {first} here, or name a checkout or a wheel with --source PATH").format(first=first),
        )
    return found


def with_installed(tree: SourceTree, packages: Iterable[str]) -> SourceTree:
    """Return `tree`, with the packages that it does not cover taken from this environment."""
    unknown = sorted({package for package in packages if not tree.covers(package)})
    return tree.with_packages(SourceTree.installed(unknown)) if unknown else tree


def locks() -> Mapping[str, Sequence[Lock]]:
    """Return all locks, by upstream."""
    return {upstream.name: read_locks(locks_folder(), upstream.name) for upstream in UPSTREAMS}


def has_verl(folder: Path) -> bool:
    """Tell whether a job that starts in `folder` imports the verl there."""
    return (folder / "verl" / "__init__.py").is_file()


def of_job(source_tree: Path) -> SourceTree:
    """Return the upstreams of a job that starts in `source_tree`: its own verl, or else the installed one."""
    return tree(str(source_tree) if has_verl(source_tree) else INSTALLED)


def nearest_pin(source_tree: Path) -> str:
    """Return the pin nearest to the verl of a job that starts in `source_tree`."""
    revisions, _unused = judge(load(), UPSTREAMS, of_job(source_tree), locks())
    return revisions[UPSTREAMS[0].name].nearest_pin
