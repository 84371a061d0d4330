"""The judgement on patches: what verification says of each, and what follows from it for the features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...errors import DriftError
from ..patch import Feature, Patch, Upstream, owners
from ..policy import Policy
from ..source.tree import SourceTree
from ..state import State
from .lock import Lock
from .revision import Revision, identify
from .verdict import Verdict, verify

__all__ = ["judge", "settle"]


def judge(
    features: Iterable[Feature], upstreams: Sequence[Upstream], tree: SourceTree, locks: Mapping[str, Sequence[Lock]]
) -> tuple[dict[str, Revision], dict[str, Verdict]]:
    """Verify all patches against `tree`: the revision of each upstream, and the verdict on each patch by its id."""
    revisions = {
        upstream.name: identify(tree, locks[upstream.name])[0]
        if any(package in tree for package in upstream.packages)
        else Revision("", False, ())
        for upstream in upstreams
    }
    owner = owners(upstreams)
    verdicts = {}
    for patch in (patch for feature in features for patch in feature):
        name = owner[patch.target.package]
        verdicts[patch.id] = verify(patch, tree, revisions[name], locks[name])
    return revisions, verdicts


def settle(
    feature: Feature, verdicts: Mapping[str, Verdict], policy: Policy
) -> tuple[dict[str, Verdict], DriftError | None]:
    """The verdict on each patch of `feature` by its id, and the error if the feature is refused for drift."""
    drifted = [patch for patch in feature if verdicts[patch.id].state is State.DRIFTED]
    disabled = feature.name in policy.disable
    refused = bool(drifted) and feature.name not in policy.force

    def settled(patch: Patch) -> Verdict:
        verdict = verdicts[patch.id]
        if disabled:
            return Verdict(State.DISABLED, f"{policy.prefix}_DISABLE")
        if verdict.state in (State.NATIVE, State.ABSENT):
            return verdict
        if verdict.state is State.DRIFTED:
            if refused:
                return Verdict(State.DRIFTED, verdict.reason)
            return Verdict(State.PENDING, f"by force: {verdict.reason}", forced=True)
        if refused:
            return Verdict(State.VERIFIED, f"not applied: {drifted[0].id} drifted, and features go whole")
        return Verdict(State.PENDING, verdict.reason)

    statuses = {patch.id: settled(patch) for patch in feature}
    if disabled or not refused:
        return statuses, None
    first = verdicts[drifted[0].id]
    return statuses, DriftError(
        subject=f"feature {feature.name} refused, {drifted[0].target} drifted",
        expected=first.expected,
        found=first.found,
        fix=f"run `{policy.command} check --diff`, then install an upstream that is a pin or a newer {policy.command}",
        override=policy.override(feature.name),
    )
