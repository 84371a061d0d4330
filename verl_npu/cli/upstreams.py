"""The upstreams as the commands see them: a source that the user names, and the locks."""

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
_OF_TRAINERS = {
    "hydra": "hydra-core",
    "omegaconf": "omegaconf",
    "ray": "ray",
    "tensordict": "tensordict",
    "torch": "torch",
    "transformers": "transformers",
    "yaml": "PyYAML",
}
"""The packages without which no trainer of verl's can be imported, by the module of each."""


def lacking() -> list[str]:
    """Return which of those this environment has not: a job in it ends at its start."""
    return [package for module, package in _OF_TRAINERS.items() if importlib.util.find_spec(module) is None]


def say_lacking(packages: Sequence[str]) -> None:
    """Print which packages a job in this environment would miss; nothing if there are all."""
    if packages:
        terminal.paragraph(
            _("no {packages} here: a job in {prefix} ends as it imports what is missing").format(
                packages=_(", ").join(packages), prefix=sys.prefix
            ),
            label=_("note: "),
            indent="  ",
        )


def tree(source: str) -> SourceTree:
    """Return the installed upstreams; if `source` is a checkout or a wheel, with verl from there."""
    found = SourceTree.installed([package for upstream in UPSTREAMS for package in upstream.packages])
    if source == INSTALLED:
        return found
    return found.with_packages(SourceTree.at(Path(source), UPSTREAMS[0].packages))


def judged_tree(source: str) -> SourceTree:
    """Return the same. Raises SourceError if it has no verl: whatever is said then is said of nothing."""
    found = tree(source)
    first = UPSTREAMS[0].name
    if source == INSTALLED and first not in found:
        raise SourceError(
            subject=first,
            expected=_("{first} in this environment, or a checkout or a wheel of it").format(first=first),
            found=_("no package of that name"),
            fix=_("install {first} here, or name its source with --source PATH").format(first=first),
        )
    return found


def with_installed(tree: SourceTree, packages: Iterable[str]) -> SourceTree:
    """Return `tree`; packages that it does not speak of are taken from this environment."""
    unknown = sorted({package for package in packages if not tree.covers(package)})
    return tree.with_packages(SourceTree.installed(unknown)) if unknown else tree


def locks() -> Mapping[str, Sequence[Lock]]:
    """Return all locks, by upstream."""
    return {upstream.name: read_locks(locks_folder(), upstream.name) for upstream in UPSTREAMS}


def has_verl(folder: Path) -> bool:
    """Return whether a job that is started in a folder imports the verl there."""
    return (folder / "verl" / "__init__.py").is_file()


def of_job(source_tree: Path) -> SourceTree:
    """Return the upstreams of a job that is started in a folder: its own verl, or else the installed one."""
    return tree(str(source_tree) if has_verl(source_tree) else INSTALLED)


def nearest_pin(source_tree: Path) -> str:
    """Return the revision of verl with a lock that is nearest to the verl of a job that is started in a folder."""
    revisions, _unused = judge(load(), UPSTREAMS, of_job(source_tree), locks())
    return revisions[UPSTREAMS[0].name].nearest_pin
