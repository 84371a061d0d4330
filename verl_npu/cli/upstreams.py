"""The upstreams that commands work on: the source that the user names, and the locks."""

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
"""The packages that every trainer of verl needs, by the names of their modules."""


def missing_packages() -> list[str]:
    """Return the packages that every verl trainer needs but that are not installed in this environment."""
    return [package for module, package in _TRAINER_REQUIREMENTS.items() if importlib.util.find_spec(module) is None]


def print_missing(packages: Sequence[str]) -> None:
    """Print the missing packages that a job in this environment needs. Print nothing if no packages are missing."""
    if packages:
        terminal.paragraph(
            _("{packages} not installed: a job in {prefix} ends with an ImportError").format(
                packages=_(", ").join(packages), prefix=sys.prefix
            ),
            label=_("note: "),
            indent="  ",
        )


def tree(source: str) -> SourceTree:
    """Return the installed upstreams. If `source` is a checkout or a wheel, take verl from `source` instead."""
    found = SourceTree.installed([package for upstream in UPSTREAMS for package in upstream.packages])
    if source == INSTALLED:
        return found
    return found.with_packages(SourceTree.at(Path(source), UPSTREAMS[0].packages))


def judged_tree(source: str) -> SourceTree:
    """Return the same tree as `tree(source)`. Raises SourceError if the tree contains no verl, because there would be
    nothing to judge."""
    found = tree(source)
    first = UPSTREAMS[0].name
    if source == INSTALLED and first not in found:
        raise SourceError(
            subject=first,
            expected=_("{first} in this environment, or a checkout or a wheel of {first}").format(first=first),
            found=_("no package named {name}").format(name=first),
            fix=_(
                "install {first} in this environment, or specify a checkout or a wheel of {first} with --source PATH"
            ).format(first=first),
        )
    return found


def with_installed(tree: SourceTree, packages: Iterable[str]) -> SourceTree:
    """Return `tree` with additional packages from this environment: the packages in `packages` that `tree` does not
    cover."""
    unknown = sorted({package for package in packages if not tree.covers(package)})
    return tree.with_packages(SourceTree.installed(unknown)) if unknown else tree


def locks() -> Mapping[str, Sequence[Lock]]:
    """Return all locks, as a mapping from the name of each upstream to that upstream's locks."""
    return {upstream.name: read_locks(locks_folder(), upstream.name) for upstream in UPSTREAMS}


def has_verl(folder: Path) -> bool:
    """Return whether `folder` contains a verl package that a job started in `folder` would import."""
    return (folder / "verl" / "__init__.py").is_file()


def of_job(source_tree: Path) -> SourceTree:
    """Return the upstreams of a job that starts in `source_tree`. The job uses the verl in that folder or, if there is
    none, the installed verl."""
    return tree(str(source_tree) if has_verl(source_tree) else INSTALLED)


def nearest_pin(source_tree: Path) -> str:
    """Return the pin nearest to the verl revision that is imported by a job started in `source_tree`."""
    revisions, _unused = judge(load(), UPSTREAMS, of_job(source_tree), locks())
    return revisions[UPSTREAMS[0].name].nearest_pin
