"""Whether a target that is what it was is still reached: a patch of what nobody calls does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..source.reader import read_import
from ..source.sites import find_sites, sites_in
from ..source.tree import SourceTree, Target, is_there
from .absence import Baseline


@dataclass(frozen=True, slots=True)
class Reach:
    """What became of the sites from which a target is reached at the nearest pin."""

    pin: str
    lost: tuple[str, ...] = ()
    """Sites that are there and do not reach it any more."""
    changed: tuple[str, ...] = ()
    """Sites that reach it and use it otherwise than at any pin."""
    is_reached: bool = True
    """Whether anything reaches it."""

    def remarks(self) -> Iterator[str]:
        """Say which sites may run without the patch."""
        if self.lost:
            yield f"bypassed: {_shown(self.lost)}, which reach it at {self.pin}, do not reach it here"
        if self.changed:
            yield f"may be bypassed: {_shown(self.changed)} use it otherwise than at {self.pin}"


def _shown(sites: tuple[str, ...]) -> str:
    more = f" and {len(sites) - 3} more" if len(sites) > 3 else ""
    return f"{', '.join(sites[:3])}{more}"


def reach(target: Target, known: Baseline, tree: SourceTree) -> Reach:
    """Compare the sites of `target` with those at the nearest pin, and a changed one with those at all pins."""
    nearest = known.nearest
    recorded = nearest.sites.get(str(target), {}) if nearest is not None and not known.exact else {}
    recorded = {site: mark for site, mark in recorded.items() if tree.has_part(site, known.packages[0])}
    if nearest is None or not recorded:
        return Reach("")
    lost, changed = [], []
    here: dict[str, str] = {}
    for site in recorded:
        module = site.partition(":")[0]
        here |= sites_in(module, target, tree)
    new = {mark for site, mark in here.items() if site not in recorded}
    for site, mark in recorded.items():
        found = here.get(site)
        if found is None:
            # Code that moved into a function of its own is reached all the same.
            if is_there(site, tree) and mark not in new:
                lost.append(site)
        elif found not in {lock.sites.get(str(target), {}).get(site) for lock in known.locks}:
            changed.append(site)
    is_reached = bool(here) or bool(find_sites(target, known.packages, tree))
    return Reach(nearest.pin, tuple(lost), tuple(changed), is_reached)


def put_over(target: Target, tree: SourceTree) -> str:
    """Return the package above a target whose `__init__` assigns something in its place; empty if there is none."""
    owner, parts = target.qualname.partition(".")[0], target.module.split(".")
    for length in range(len(parts) - 1, 0, -1):
        package = ".".join(parts[:length])
        if owner.encode() in (tree.read(package) or b""):
            places = (target.dotted, f"{target.module}.{owner}")
            if any(step.value and step.place in places for step in read_import(package, tree).steps):
                return package
    return ""
