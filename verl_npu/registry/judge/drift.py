"""What a newer upstream means for each patch: it landed there, it still fits, it drifted, or its target is gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ..patch import Action, Feature, Patch, Upstream
from ..source.tree import SourceTree
from ..state import State
from .answers import Answers
from .difference import drift_diff
from .judgement import find
from .lock import Lock, Record
from .verdict import verify

__all__ = ["Finding", "Outcome", "survey"]


class Outcome(str, Enum):
    """What is to be done about a patch."""

    LANDED = "landed"
    """Upstream does it itself now: retire the patch."""
    DRIFTED = "drifted"
    """The target changed: adapt the patch."""
    GONE = "gone"
    """The target is not there any more, and nothing says that upstream does it itself: look into it."""
    FITS = "fits"
    """Lock the new revision, nothing else."""
    IDLE = "idle"
    """There is nothing to patch at this revision."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Finding:
    """What a source tree says of one patch."""

    patch: Patch
    outcome: Outcome
    reason: str
    against: str
    """The pin that it was compared with."""
    diff: str
    """How the target differs from that pin; empty where it does not."""


def survey(
    features: Iterable[Feature], upstreams: Sequence[Upstream], tree: SourceTree, locks: Mapping[str, Sequence[Lock]]
) -> list[Finding]:
    """Compare every patch whose target `tree` speaks of with the pin that the tree is nearest to."""
    patches = [patch for feature in features for patch in feature]
    _, found = find(patches, upstreams, tree, locks)
    answers = Answers(tree, found.__getitem__)
    findings = []
    for patch in (patch for patch in patches if tree.covers(patch.target.package)):
        nearest = found[patch.target.package].nearest
        pin = nearest.pin if nearest is not None else ""
        record = nearest.targets.get(patch.target, Record()) if nearest is not None else Record()
        verdict = verify(patch, answers, found[patch.target.package])
        differs = patch.action is not Action.ADD and record != Record.of(tree.definition(patch.target))
        findings.append(
            Finding(
                patch=patch,
                outcome=_outcome(patch, tree, verdict.state),
                reason=verdict.reason,
                against=pin,
                diff=drift_diff(patch.target, pin, record, tree) if differs else "",
            )
        )
    return findings


def _outcome(patch: Patch, tree: SourceTree, state: State) -> Outcome:
    if state in (State.NATIVE, State.CLAIMED):
        return Outcome.LANDED
    if state is State.VERIFIED:
        return Outcome.FITS
    if state is State.ABSENT:
        return Outcome.IDLE
    return Outcome.DRIFTED if tree.nodes(patch.target) else Outcome.GONE
