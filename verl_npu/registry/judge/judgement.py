"""The judgement on patches: what verification says of each, and what follows from it for the features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...errors import DriftError
from ..patch import Feature, Patch, Upstream
from ..policy import Policy
from ..source.presence import package_of
from ..source.tree import SourceTree
from ..state import UPSTREAMS_OWN, State
from .absence import Found
from .answers import Answers
from .lock import Lock
from .revision import Revision, identify
from .verdict import Verdict, verify

__all__ = ["find", "judge", "settle"]


def judge(
    features: Iterable[Feature], upstreams: Sequence[Upstream], tree: SourceTree, locks: Mapping[str, Sequence[Lock]]
) -> tuple[dict[str, Revision], dict[str, Verdict]]:
    """Verify all patches against `tree`: the revision of each upstream, and the verdict on each patch by its id."""
    patches = [patch for feature in features for patch in feature]
    revisions, found = find(patches, upstreams, tree, locks)
    answers = Answers(tree, found.__getitem__)
    return revisions, {patch.id: verify(patch, answers, found[patch.target.package]) for patch in patches}


def find(
    patches: Sequence[Patch], upstreams: Sequence[Upstream], tree: SourceTree, locks: Mapping[str, Sequence[Lock]]
) -> tuple[dict[str, Revision], dict[str, Found]]:
    """Find the revision of each upstream by its name, and what is known of it by each package that it brings."""
    atoms = {str(atom): atom for patch in patches for atom in patch.atoms()}
    revisions: dict[str, Revision] = {}
    found: dict[str, Found] = {}
    for upstream in upstreams:
        revision, lock = Revision("", False, ()), None
        if any(package in tree for package in upstream.packages):
            own = [atom for atom in atoms.values() if package_of(atom.subject) in upstream.packages]
            revision, lock = identify(tree, locks[upstream.name], own)
        revisions[upstream.name] = revision
        known = Found(lock, revision.exact, locks[upstream.name], upstream.packages)
        found |= dict.fromkeys(upstream.packages, known)
    return revisions, found


def settle(
    feature: Feature, verdicts: Mapping[str, Verdict], policy: Policy
) -> tuple[dict[str, Verdict], DriftError | None]:
    """The verdict on each patch of `feature` by its id, and what is wrong: the feature is refused for drift, or what
    is left to upstream is not done by it."""
    drifted = [patch for patch in feature if verdicts[patch.id].state is State.DRIFTED]
    disabled = feature.name in policy.disable
    refused = bool(drifted) and feature.name not in policy.force

    def settled(patch: Patch) -> Verdict:
        verdict = verdicts[patch.id]
        if disabled:
            return Verdict(State.DISABLED, f"{policy.prefix}_DISABLE")
        if verdict.state in (*UPSTREAMS_OWN, State.ABSENT):
            return verdict
        if verdict.state is State.DRIFTED:
            if refused:
                return verdict
            return Verdict(State.PENDING, f"by force: {verdict.reason}", forced=True)
        if refused:
            return Verdict(State.VERIFIED, f"not applied: {drifted[0].id} drifted, and features go whole")
        return Verdict(State.PENDING, verdict.reason)

    statuses = {patch.id: settled(patch) for patch in feature}
    if disabled or not refused:
        return statuses, None if disabled else _ineffective(feature, statuses, policy)
    first = verdicts[drifted[0].id]
    return statuses, DriftError(
        subject=f"feature {feature.name} refused, {drifted[0].target} drifted",
        expected=first.expected,
        found=first.found,
        fix=f"run `{policy.command} check --diff`, then install an upstream that is a pin or a newer {policy.command}",
        override=policy.override(feature.name),
    )


def _ineffective(feature: Feature, statuses: Mapping[str, Verdict], policy: Policy) -> DriftError | None:
    lost = [patch for patch in feature if statuses[patch.id].state is State.INEFFECTIVE]
    if not lost:
        return None
    first = statuses[lost[0].id]
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return DriftError(
        subject=f"feature {feature.name}, {lost[0].target}{more}",
        expected=first.expected,
        found=first.found,
        fix="install the version of the patched package that this upstream was written for",
        override=f"{policy.prefix}_STRICT=0",
    )
