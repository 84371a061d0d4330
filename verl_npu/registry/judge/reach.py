"""A check of whether an unchanged target is still called. Patching a function that nobody calls has no effect."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ..source.reader import read_body, read_import
from ..source.sites import OVERRIDES, Site, find_sites, overrides, sites_in
from ..source.tree import SourceTree, Target, is_there, packages_above
from .absence import Baseline


@dataclass(frozen=True, slots=True)
class Reach:
    """How the code that uses a target differs between a tree and the nearest pin."""

    pin: str
    lost: tuple[str, ...] = ()
    """Sites that still exist but no longer use the target."""
    changed: tuple[str, ...] = ()
    """Sites that use the target in a way that no pin has."""
    overriding: tuple[str, ...] = ()
    """Methods of derived classes that override the target here, but at no pin."""
    is_reached: bool = True
    """Whether any code uses the target."""

    def remarks(self) -> Iterator[str]:
        """Yield remarks about the sites that may run without the patch."""
        if self.lost:
            nothing = "" if self.is_reached else ", and nothing else calls the target"
            yield f"bypassed at {_shown(self.lost)}: that code calls the target at {self.pin}, but not here{nothing}"
        if self.overriding:
            yield f"bypassed by {_shown(self.overriding)}, which override the target"
        if self.changed:
            yield f"may be bypassed at {_shown(self.changed)}: the call differs from the call at {self.pin}"


def _shown(sites: tuple[str, ...]) -> str:
    more = f" and {len(sites) - 3} more" if len(sites) > 3 else ""
    return f"{', '.join(sites[:3])}{more}"


def reach(target: Target, known: Baseline, tree: SourceTree) -> Reach:
    """Compare the sites (the functions and modules that use `target`) with the sites at the nearest pin. A site that
    differs is then compared with the same site at all pins."""
    nearest = known.nearest
    recorded = nearest.sites.get(str(target), {}) if nearest is not None and not known.exact else {}
    recorded = {site: text for site, text in recorded.items() if tree.has_part(site, known.packages[0])}
    if nearest is None or not recorded:
        return Reach("")
    here: dict[str, Site] = {}
    for site in recorded:
        here |= sites_in(site.partition(":")[0], target, tree)
    pins = [lock.sites.get(str(target), {}) for lock in known.locks]
    known_before = {site for sites in pins for site in sites}
    lost, changed = [], []
    for site in (site for site, text in recorded.items() if text != OVERRIDES):
        found = here.get(site)
        if found is None:
            if is_there(site, tree) and not _reaches(site, set(here) - known_before, tree):
                lost.append(site)
        elif not any(site in sites and found.reaches_as(Site.parse(sites[site])) for sites in pins):
            changed.append(site)
    overriding = tuple(site for site in overrides(target, known.packages, tree) if site not in known_before)
    is_reached = bool(here) or not lost or bool(find_sites(target, known.packages, tree))
    return Reach(nearest.pin, tuple(lost), tuple(changed), overriding, is_reached)


def _reaches(site: str, new: Collection[str], tree: SourceTree) -> bool:
    """Return whether a site now reaches the target indirectly, through one of the `new` sites in its module."""
    module = site.partition(":")[0]
    here = [other.partition(":")[2].split(".") for other in new if other.startswith(f"{module}:")]
    # The code names a method by its own name, and a class that is instantiated by the name of the class.
    names = {name for parts in here for name in (parts[0], parts[-1])}
    return bool(names) and not names.isdisjoint(read_body(site, tree).reads)


def package_overwriting(target: Target, tree: SourceTree) -> str:
    """Return the parent package whose `__init__` replaces the target with another object, or an empty string if there
    is none."""
    owner = target.qualname.partition(".")[0]
    for package in reversed(packages_above(target.module)):
        if owner.encode() in (tree.read(package) or b""):
            places = (target.dotted, f"{target.module}.{owner}")
            if any(step.value and step.place in places for step in read_import(package, tree).steps):
                return package
    return ""
