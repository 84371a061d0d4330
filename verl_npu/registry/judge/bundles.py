"""Verdicts on the features of several owners. Each owner is judged by its own locks, so an incorrect lock affects no
other owner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...damage import is_temporary
from ...errors import DamagedError, DeclarationError, RegistryError
from ..patch import Bundle, refuse_conflicts
from ..source.tree import SourceTree
from ..state import State
from .lock import Lock, Revision, read_locks
from .verdict import Verdict, judge

_SHOWN = 3
"""The number of patches of each feature that an error lists."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of judging one bundle."""

    bundle: Bundle
    tree: SourceTree
    locks: Mapping[str, Sequence[Lock]] = field(default_factory=dict)
    """The locks by upstream."""
    revisions: Mapping[str, Revision] = field(default_factory=dict)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    error: RegistryError | None = None
    """The reason why none of the bundle's features may be applied. None if they may."""


def judge_bundles(bundles: Sequence[Bundle], tree: SourceTree) -> Iterator[Judged]:
    """Judge the features of each owner. Packages that `tree` does not cover are taken from the running environment.

    If an error occurs in an owner's bundle, the result contains the error, and all patches of the bundle fail. Errors
    in the registry's own bundle are raised, except for patches that the locks contain but the bundle does not declare:
    the result contains this error.
    """
    for bundle in bundles:
        packages = [package for upstream in bundle.upstreams for package in upstream.packages]
        missing = [package for package in packages if not tree.covers(package)]
        own = tree.with_packages(SourceTree.installed(missing)) if missing else tree
        try:
            found = _judged(bundle, own)
        except Exception as error:
            if not bundle.owner or is_temporary(error):
                raise
            found = Judged(bundle, own, error=error if isinstance(error, RegistryError) else _unjudged(bundle, error))
        if found.error is not None and bundle.owner:
            failed = Verdict(State.FAILED, str(found.error))
            verdicts = {patch.id: failed for feature in bundle.features for patch in feature}
            found = Judged(bundle, own, found.locks, found.revisions, verdicts, found.error)
        yield found


def _judged(bundle: Bundle, tree: SourceTree) -> Judged:
    refuse_conflicts(list(bundle.features))
    locks = {upstream.name: read_locks(bundle.locks, upstream.name) for upstream in bundle.upstreams}
    revisions, verdicts = judge(bundle.features, bundle.upstreams, tree, locks)
    return Judged(bundle, tree, locks, revisions, verdicts, missing_patches(bundle, locks))


def missing_patches(bundle: Bundle, locks: Mapping[str, Sequence[Lock]]) -> DamagedError | None:
    """If the locks list patches that the bundle does not declare, return an error. Otherwise, return None. Without
    this error, verl-npu would apply a feature without these patches."""
    missing = {id for known in locks.values() for lock in known for id in lock.patches}
    missing -= {patch.id for feature in bundle.features for patch in feature}
    missing -= {id for feature in bundle.features for id in feature.left_out}
    if not missing:
        return None
    by_feature: dict[str, list[str]] = {}
    for id in sorted(missing):
        by_feature.setdefault(id.partition(".")[0], []).append(id)
    more = {name: f" and {len(ids) - _SHOWN} more of {name}" * (len(ids) > _SHOWN) for name, ids in by_feature.items()}
    return DamagedError(
        subject=bundle.owner or "this installation",
        found="some files of the package are probably missing or truncated, because these patches are in the locks "
        "but not in the code: " + "; ".join(", ".join(ids[:_SHOWN]) + more[name] for name, ids in by_feature.items()),
        fix=f"reinstall {bundle.owner or 'the package'}; if you added a patch yourself, move the patch and its "
        "lock into your own distribution",
    )


def _unjudged(bundle: Bundle, error: Exception) -> DeclarationError:
    return DeclarationError(
        subject=f"the features of {bundle.owner}",
        found=f"verl-npu cannot check these features: {type(error).__name__}: {error}",
        fix=f"report the error to the maintainers of {bundle.owner}, or uninstall {bundle.owner}",
    )
