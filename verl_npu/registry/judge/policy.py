"""Combination of verdicts on patches into the state of a feature. The user's switches are taken into account."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...errors import DriftError, SettingError
from ..patch import Feature
from ..state import State
from .verdict import ONLY_WORDS, Verdict

WHOLE = "a feature is applied whole or not at all"
"""The reason why one patch of a feature can decide about the others."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of a registry, as chosen by the user."""

    prefix: str
    """The prefix of the environment variables `<prefix>_STRICT`, `<prefix>_FORCE`, and `<prefix>_DISABLE`."""
    command: str = ""
    """The command that shows the details of a drift. Errors name it."""
    strict: bool = False
    """Strict mode: drift or a failure raises an error in the import that reveals it."""
    force: frozenset[str] = frozenset()
    """Features that are applied even if they have drifted. The summary then says TAINTED."""
    disable: frozenset[str] = frozenset()
    """Features that the user has disabled."""

    def wrong(self, known: Iterable[str]) -> Iterator[SettingError]:
        """Yield an error for each variable that names unknown features, because unknown names have no effect."""
        names = sorted(known)
        for switch, chosen in (("FORCE", self.force), ("DISABLE", self.disable)):
            unknown = sorted(chosen - set(names))
            if unknown:
                near = difflib.get_close_matches(unknown[0], names, n=1)
                yield SettingError(
                    subject=f"{self.prefix}_{switch}={','.join(sorted(chosen))}",
                    expected=f"some of the names {', '.join(names)}, separated by commas",
                    found=f"{', '.join(unknown)}, which has no effect",
                    fix=f"did you mean {near[0]}?" if near else "correct the name, or unset the variable",
                )


def settle(
    feature: Feature, verdicts: Mapping[str, Verdict], policy: Policy
) -> tuple[dict[str, Verdict], DriftError | None]:
    """Return the verdict on each patch of `feature`, as a mapping from patch ids to verdicts, together with an error
    or None. The error says that the feature is refused because of drift, or because it relies on an upstream patch
    that has no effect."""
    drifted = [patch for patch in feature if verdicts[patch.id].state is State.DRIFTED]
    refused = bool(drifted) and feature.name not in policy.force

    def settled(verdict: Verdict) -> Verdict:
        if verdict.state in (State.NATIVE, State.FAILED, State.ABSENT) or (refused and verdict.state is State.DRIFTED):
            return verdict
        if verdict.state is State.DRIFTED:
            return Verdict(State.PENDING, f"forced: {verdict.reason}", forced=True)
        if refused:
            return Verdict(State.OFF, f"not applied, because {drifted[0].id} drifted: {WHOLE}")
        return Verdict(State.PENDING, verdict.reason)

    if feature.name in policy.disable:
        return {patch.id: Verdict(State.OFF, f"{policy.prefix}_DISABLE") for patch in feature}, None
    statuses = {patch.id: settled(verdicts[patch.id]) for patch in feature}
    if not refused:
        return statuses, _ineffective(feature, statuses, policy)
    first = verdicts[drifted[0].id]
    fix = f"run `{policy.command} check --diff`, then install an upstream that is a pin, or a newer {policy.command}"
    if all(verdicts[patch.id].only_wording for patch in drifted):
        fix = f"set {policy.prefix}_FORCE={feature.name}, which is safe here because only {ONLY_WORDS} differ"
    return statuses, DriftError(
        subject=f"feature {feature.name} refused, {drifted[0].target} drifted",
        expected=first.expected,
        found=first.found,
        fix=fix,
        override=f"{policy.prefix}_FORCE={feature.name}",
    )


def _ineffective(feature: Feature, statuses: Mapping[str, Verdict], policy: Policy) -> DriftError | None:
    lost = [patch for patch in feature if statuses[patch.id].state is State.FAILED]
    if not lost:
        return None
    first = statuses[lost[0].id]
    return unpatched_error(
        [f"feature {feature.name}, {patch.target}" for patch in lost], first.expected, first.found, policy
    )


def unpatched_error(targets: Sequence[str], expected: str, found: str, policy: Policy) -> DriftError:
    """Return the error for targets that remain unpatched: verl-npu leaves the targets to upstream's patches, but
    upstream's patches do not reach them."""
    more = f" and {len(targets) - 1} more" if len(targets) > 1 else ""
    return DriftError(
        subject=f"{targets[0]}{more}",
        expected=expected,
        found=found,
        fix="install the version of the patched package that this upstream was written for",
        override=f"{policy.prefix}_STRICT=0",
    )
