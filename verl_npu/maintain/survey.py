"""Comparison of each patch with a newer upstream. The upstream contains the patch's change, the patch still fits, the
patch has drifted, or its target no longer exists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..cli.diff import drift_diff
from ..registry.judge.lock import Lock, Record
from ..registry.judge.verdict import judge
from ..registry.patch import Action, Feature, Patch, Upstream
from ..registry.source.tree import SourceTree
from ..registry.state import State, Word


class Outcome(Word):
    """The result of the comparison for one patch, including what to do with the patch."""

    LANDED = "landed"
    """Upstream now has the fix itself. Retire the patch."""
    DRIFTED = "drifted"
    """The target has changed. Adapt the patch."""
    GONE = "gone"
    """The target no longer exists, and no fix in upstream is known. Find out why."""
    FITS = "fits"
    """The patch still fits. Write a lock for the new revision."""
    IDLE = "idle"
    """There is nothing to patch at this revision."""


_OUTCOMES = {
    State.NATIVE: Outcome.LANDED,
    State.PENDING: Outcome.FITS,
    State.ABSENT: Outcome.IDLE,
}


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The comparison of one patch with the newer upstream."""

    patch: Patch
    outcome: Outcome
    reason: str
    against: str
    """The pin that the source was compared with."""
    diff: str
    """The diff between the target at that pin and in the source. Empty if they are equal."""


def survey(
    features: Iterable[Feature], upstreams: Sequence[Upstream], tree: SourceTree, locks: Mapping[str, Sequence[Lock]]
) -> Iterator[Surveyed]:
    """Compare each patch's target in `tree` with the target at the pin nearest to `tree`. Yield one result for each
    patch."""
    features = list(features)
    revisions, verdicts = judge(features, upstreams, tree, locks)
    known = {
        package: (revisions[upstream.name].nearest_pin, {lock.pin: lock for lock in locks[upstream.name]})
        for upstream in upstreams
        for package in upstream.packages
    }
    for patch in (patch for feature in features for patch in feature if tree.covers(patch.target.package)):
        pin, pins = known[patch.target.package]
        nearest = pins.get(pin)
        record = nearest.targets.get(patch.target, Record()) if nearest is not None else Record()
        verdict = verdicts[patch.id]
        broken = Outcome.DRIFTED if tree.nodes(patch.target) else Outcome.GONE
        differs = patch.action is not Action.ADD and record != Record.of(patch.target, tree)
        yield Surveyed(
            patch=patch,
            outcome=_OUTCOMES.get(verdict.state, broken),
            reason=verdict.reason,
            against=pin,
            diff=drift_diff(patch.target, pin, record, tree) if differs else "",
        )
