"""Where a patch may have to go, if its target was moved or renamed: candidates, which a job has to prove."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..patch import Action, Patch, Upstream
from ..source.presence import is_there
from ..source.target import Target
from ..source.tree import SourceTree
from ..source.whereabouts import Place, places, similarity
from .lock import Lock, Record

__all__ = ["Proposal", "propose"]

# Found by trying them on what upstream did between its releases: docs/history.md has the figures.
_TELLING = 3
_ALIKE = 0.6
_ALIKE_BY_NAME = 0.3


@dataclass(frozen=True, slots=True)
class Proposal:
    """A place that has taken the place of a patch's target, as it seems. Nothing has been run to prove it."""

    patch: Patch
    target: Target
    likeness: float
    """The share of the statements that the two have in common, from 0 to 1."""
    why: str
    record: Record
    """The lock entry that the new target would have."""
    taken: str
    """The patch that has this target already; empty if none has."""


def propose(
    patches: Sequence[Patch], upstream: Upstream, tree: SourceTree, locks: Sequence[Lock]
) -> dict[str, Proposal]:
    """Return a proposal for each patch of an upstream whose target is not in `tree`, and was at a pin, by the patch.

    The last of `locks` that has the target counts. A patch has none if nothing in the tree is like its target.
    """
    known = {patch.target: patch.id for patch in patches}
    lost = {
        patch.id: (patch, lock)
        for patch in patches
        if patch.target.package in upstream.packages and patch.action is not Action.ADD
        for lock in locks
        if not is_there(str(patch.target), tree) and lock.targets.get(patch.target, Record()).fingerprint
    }
    found: dict[str, Proposal] = {}
    standing = list(_standing(upstream, tree)) if lost else []
    for patch, lock in lost.values():
        best = _best(patch.target, lock, standing, tree)
        if best is not None:
            target, likeness = best
            why = f"{likeness:.0%} of the statements of {lock.pin} stand there"
            found[patch.id] = _proposal(patch, target, likeness, why, tree, known)
    for id, (patch, _) in lost.items():
        moved = _moved_with(patch.target, list(found.values()))
        if id not in found and moved is not None and is_there(str(moved), tree):
            found[id] = _proposal(patch, moved, 0.0, "what stood beside it stands there", tree, known)
    for id, (patch, lock) in lost.items():
        other = _namesake_beside(patch.target, lock, standing, tree)
        if id not in found and other is not None:
            why = "a class in a module beside it has that name"
            found[id] = _proposal(patch, other, 0.0, why, tree, known)
    return found


def _proposal(
    patch: Patch, target: Target, likeness: float, why: str, tree: SourceTree, known: Mapping[Target, str]
) -> Proposal:
    return Proposal(patch, target, likeness, why, Record.of(tree.definition(target)), known.get(target, ""))


def _standing(upstream: Upstream, tree: SourceTree) -> Iterator[tuple[Target, Place]]:
    for package in upstream.packages:
        for module in tree.modules_below(package) if package in tree else ():
            for place in places(module, tree):
                yield Target(module, place.qualname), place


def _best(
    target: Target, lock: Lock, standing: Sequence[tuple[Target, Place]], tree: SourceTree
) -> tuple[Target, float] | None:
    record = lock.targets[target]
    body = record.outline[1:]
    # What was there before beside the target is not where it went.
    rivals = [
        (_rank(target, other, likeness), other, likeness)
        for other, place in standing
        if not _was_there(other, lock, tree)
        for likeness in (similarity(body, place.body),)
        if _is_alike(target, record, other, place, likeness)
    ]
    if not rivals:
        return None
    _, other, likeness = max(rivals)
    return other, likeness


def _is_alike(target: Target, record: Record, other: Target, place: Place, likeness: float) -> bool:
    same_name = target.name.strip("_") == other.name.strip("_")
    beside = target.module == other.module or (target.qualname == other.qualname and _leaf(target) == _leaf(other))
    if same_name and beside:
        return likeness >= _ALIKE_BY_NAME
    telling = len(record.outline) > _TELLING and len(place.body) >= _TELLING
    return telling and likeness >= _ALIKE and (same_name or record.signature == place.signature)


def _rank(target: Target, other: Target, likeness: float) -> float:
    same = (target.qualname == other.qualname, _leaf(target) == _leaf(other), target.name == other.name)
    return likeness + 0.1 * sum(same)


def _leaf(target: Target) -> str:
    return target.module.rpartition(".")[2]


def _moved_with(target: Target, found: Sequence[Proposal]) -> Target | None:
    """Return where the target is if it went with its module, or its module with most of its package."""
    package, _, leaf = target.module.rpartition(".")
    modules = Counter(one.target.module for one in found if one.patch.target.module == target.module)
    packages = Counter(
        one.target.module.rpartition(".")[0]
        for one in found
        if one.patch.target.module.rpartition(".")[0] == package and _leaf(one.patch.target) == _leaf(one.target)
    )
    went = [module for module, _ in modules.most_common(1)]
    went += [f"{other}.{leaf}" for other, _ in packages.most_common(1)]
    return Target(went[0], target.qualname) if went else None


def _namesake_beside(
    target: Target, lock: Lock, standing: Sequence[tuple[Target, Place]], tree: SourceTree
) -> Target | None:
    """Return what has the same qualified name in another module of the same package, if it is in a class and alone.

    Every other class has an `__init__`, which says nothing.
    """
    package = target.module.rpartition(".")[0]
    telling = target.owner and not target.name.startswith("__")
    others = [
        other
        for other, _ in standing
        if telling and other.qualname == target.qualname and other.module.rpartition(".")[0] == package
    ]
    return others[0] if len(others) == 1 and not _was_there(others[0], lock, tree) else None


def _was_there(other: Target, lock: Lock, tree: SourceTree) -> bool:
    """Whether something is known to have stood where it stands at the pin as well, so that nothing came there."""
    if lock.targets.get(other, Record()).fingerprint:
        return True
    digest = lock.files.get(other.module)
    return bool(digest) and digest == tree.digest(other.module)
