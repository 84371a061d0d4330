"""What a newer upstream means for each patch: it landed there, it fits, it drifted, or its target is gone. Differences
are shown as text."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..patch import Action, Feature, Patch, Upstream
from ..source.definition import outline
from ..source.tree import SourceTree, Target
from ..state import State, Word
from .lock import Lock, Record
from .verdict import Answers, baselines, verify

_EFFECT = {
    Action.WRAP: "called instead of the target, which it gets as its first argument",
    Action.ADD: "added, because upstream has nothing of this name",
    Action.SET: "called with upstream's value; what it returns becomes the value",
    Action.GUARD: "called before the target's module is executed",
}
"""What becomes of an implementation that does not stand in place of upstream's code."""


def drift_diff(target: Target, pin: str, record: Record, tree: SourceTree) -> str:
    """Show how `target` in `tree` differs from `record`, its lock at `pin`, as a unified diff.

    A lock knows the pin's statements by their hashes alone, so what went is counted and what came is shown.
    """
    source = tree.lines(target.module)
    found = outline(tree.nodes(target))
    observed = Record.of(tree.definition(target))
    lines = [f"--- {target} at {pin}", f"+++ {target} found"]
    if record.signature != observed.signature:
        lines += [f"-signature {record.signature or 'none'}", f"+signature {observed.signature or 'none'}"]
    if not found:
        return "\n".join([*lines, f"-all {len(record.outline)} statements", "+(not there)", ""])
    matcher = difflib.SequenceMatcher(a=record.outline, b=[line.mark for line in found], autojunk=False)
    for tag, a1, a2, b1, b2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        where = found[min(b1, len(found) - 1)].first
        lines.append(f"@@ statement {a1 + 1} of {len(record.outline)} at {pin}, line {where} found @@")
        if a2 > a1:
            lines.append(f"-({a2 - a1} statement{'s' if a2 - a1 > 1 else ''} of {pin})")
        lines += [f"+{text}" for line in found[b1:b2] for text in source[line.first - 1 : line.last]]
    return "\n".join([*lines, ""])


def patch_diff(patch: Patch, tree: SourceTree) -> str:
    """Show what `patch` changes in `tree`, as a unified diff without context.

    A replacement is compared with the target's source. All other patches leave that source as it is, so there are only
    lines of ours, and the header says when they are called.
    """
    ours = _source(patch)
    implementation = f"{patch.implementation.__module__}:{patch.implementation.__qualname__}"
    head = [f"--- {patch.target}", f"+++ {implementation} ({patch.action})"]
    if patch.action is not Action.REPLACE:
        return "\n".join([*head, f"@@ {_EFFECT[patch.action]} @@", *(f"+{line}" for line in ours), ""])
    lines = tree.lines(patch.target.module)
    taken = [line for node in tree.nodes(patch.target) for line in lines[node.lineno - 1 : node.end_lineno]]
    theirs = textwrap.dedent("\n".join(taken)).splitlines()
    # The first two lines of difflib name the files; they are named above.
    return "\n".join([*head, *list(difflib.unified_diff(theirs, ours, n=0, lineterm=""))[2:], ""])


def _source(patch: Patch) -> list[str]:
    lines = textwrap.dedent(inspect.getsource(patch.implementation)).splitlines()
    # The declaration above it is shown by `explain`; what runs begins at the definition.
    start = next(n for n, line in enumerate(lines) if line.startswith(("def ", "async def ", "class ")))
    return lines[start:]


class Outcome(Word):
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


_OUTCOMES = {
    State.NATIVE: Outcome.LANDED,
    State.CLAIMED: Outcome.LANDED,
    State.VERIFIED: Outcome.FITS,
    State.ABSENT: Outcome.IDLE,
}


@dataclass(frozen=True, slots=True)
class Surveyed:
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
) -> Iterator[Surveyed]:
    """Compare every patch whose target `tree` speaks of with the pin that the tree is nearest to, one by one."""
    patches = [patch for feature in features for patch in feature]
    _, known = baselines(patches, upstreams, tree, locks)
    answers = Answers(tree, known)
    for patch in (patch for patch in patches if tree.covers(patch.target.package)):
        nearest = known[patch.target.package].nearest
        pin = nearest.pin if nearest is not None else ""
        record = nearest.targets.get(patch.target, Record()) if nearest is not None else Record()
        verdict = verify(patch, answers)
        broken = Outcome.DRIFTED if tree.nodes(patch.target) else Outcome.GONE
        differs = patch.action is not Action.ADD and record != Record.of(tree.definition(patch.target))
        yield Surveyed(
            patch=patch,
            outcome=_OUTCOMES.get(verdict.state, broken),
            reason=verdict.reason,
            against=pin,
            diff=drift_diff(patch.target, pin, record, tree) if differs else "",
        )
