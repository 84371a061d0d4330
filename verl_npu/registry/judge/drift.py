"""What a newer upstream means for each patch: it landed there, it fits, it drifted, or its target is gone; and where
that may be now. Differences are shown as text."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..patch import Action, Feature, Patch, Upstream
from ..source.definition import outline
from ..source.lookup import Outline, is_there, outlines, similarity
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
) -> list[Surveyed]:
    """Compare every patch whose target `tree` speaks of with the pin that the tree is nearest to."""
    patches = [patch for feature in features for patch in feature]
    _, known = baselines(patches, upstreams, tree, locks)
    answers = Answers(tree, known)
    findings = []
    for patch in (patch for patch in patches if tree.covers(patch.target.package)):
        nearest = known[patch.target.package].nearest
        pin = nearest.pin if nearest is not None else ""
        record = nearest.targets.get(patch.target, Record()) if nearest is not None else Record()
        verdict = verify(patch, answers)
        broken = Outcome.DRIFTED if tree.nodes(patch.target) else Outcome.GONE
        differs = patch.action is not Action.ADD and record != Record.of(tree.definition(patch.target))
        findings.append(
            Surveyed(
                patch=patch,
                outcome=_OUTCOMES.get(verdict.state, broken),
                reason=verdict.reason,
                against=pin,
                diff=drift_diff(patch.target, pin, record, tree) if differs else "",
            )
        )
    return findings


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

    def proposal(patch: Patch, target: Target, likeness: float, why: str) -> Proposal:
        record = Record.of(tree.definition(target))
        return Proposal(
            patch=patch, target=target, likeness=likeness, why=why, record=record, taken=known.get(target, "")
        )

    found: dict[str, Proposal] = {}
    standing = list(_standing(upstream, tree)) if lost else []
    for patch, lock in lost.values():
        best = _best(patch.target, lock, standing, tree)
        if best is not None:
            why = f"{best[1]:.0%} of the statements of {lock.pin} stand there"
            found[patch.id] = proposal(patch, *best, why)
    for id, (patch, _) in lost.items():
        moved = _moved_with(patch.target, list(found.values()))
        if id not in found and moved is not None and is_there(str(moved), tree):
            found[id] = proposal(patch, moved, 0.0, "what stood beside it has moved there")
    for id, (patch, lock) in lost.items():
        other = _namesake_beside(patch.target, lock, standing, tree)
        if id not in found and other is not None:
            found[id] = proposal(patch, other, 0.0, "a class in a module beside it has that name")
    return found


def _standing(upstream: Upstream, tree: SourceTree) -> Iterator[tuple[Target, Outline]]:
    for module in tree.modules_of(upstream.packages):
        yield from ((Target(module, place.qualname), place) for place in outlines(module, tree))


def _best(
    target: Target, lock: Lock, standing: Sequence[tuple[Target, Outline]], tree: SourceTree
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


def _is_alike(target: Target, record: Record, other: Target, place: Outline, likeness: float) -> bool:
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
    target: Target, lock: Lock, standing: Sequence[tuple[Target, Outline]], tree: SourceTree
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
