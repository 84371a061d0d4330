"""How the judgment handles mutants, and whether a reader can follow it.

The rules of evidence are written here a second time, independent of the code that judges.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

from verl_npu.features import UPSTREAMS, load, locks_folder
from verl_npu.registry.judge.lock import Lock, Revision, read_locks
from verl_npu.registry.judge.verdict import Verdict, judge
from verl_npu.registry.patch import Action, Feature, Patch
from verl_npu.registry.source.probe import Assigns, Atom
from verl_npu.registry.source.tree import SourceTree, Target, is_there
from verl_npu.registry.state import Standing, State

from .edits import Effect, edited
from .mutants import PACKAGES, Kind, Mutant, Upstream, losses

LOCKS = {upstream.name: read_locks(locks_folder(), upstream.name) for upstream in UPSTREAMS}
FEATURES = load()
PATCHES = [patch for feature in FEATURES for patch in feature]


class Outcome(str, Enum):
    """The outcome of a mutant, for the patches that concern the part it removed."""

    DRIFTED = "drifted"
    """At least one patch drifted, and the verdicts on the others are true."""
    EVIDENCE = "evidence"
    """No patch drifted: the tree shows that upstream does it itself, or that there is nothing to patch, or the moved
    code could be read where it is imported from."""
    SILENT = "silent"
    """A verdict does not follow."""


@dataclass(frozen=True)
class Judged:
    """The verdicts on a tree."""

    revision: Revision
    verdicts: dict[str, Verdict]


class Pin:
    """A pin, and the verdicts on trees that differ from it."""

    def __init__(self, lock: Lock, source: Path, beside: SourceTree) -> None:
        self.lock = lock
        self.upstream = Upstream(source)
        self._beside = beside

    def judged(self, mutant: Mutant | None = None) -> Judged:
        revisions, verdicts = judge(FEATURES, UPSTREAMS, self.tree(mutant), LOCKS)
        return Judged(revisions["verl"], verdicts)

    def tree(self, mutant: Mutant | None = None) -> SourceTree:
        return self.upstream.tree(mutant).with_packages(self._beside)

    @cached_property
    def before(self) -> Judged:
        return self.judged()

    @cached_property
    def subjects(self) -> list[str]:
        """All targets and other subjects of patches that exist at the pin."""
        tree = self.tree()
        return [subject for subject in self.lock.subjects if is_there(subject, tree)]

    @cached_property
    def modules(self) -> list[str]:
        return list(dict.fromkeys(subject.partition(":")[0] for subject in self.subjects))

    def losses(self) -> Iterator[Mutant]:
        return losses(self.upstream, self.subjects)

    @cached_property
    def verified(self) -> dict[Target, Patch]:
        """The targets that patches wrap or replace at the pin."""
        called = (Action.WRAP, Action.REPLACE)
        states = {id: verdict.state for id, verdict in self.before.verdicts.items()}
        return {p.target: p for p in PATCHES if p.action in called and states[p.id] is State.PENDING}

    def of_edits(self, share: int = 1) -> Iterator[tuple[str, Effect, Patch, Mutant]]:
        """Yield every edit of each target that is verified here, or of one in `share` of these targets.

        Each comes with its name, its effect, and the patch.
        """
        own = sorted(target for target in self.verified if target.package in PACKAGES)
        for target in random.Random(0).sample(own, math.ceil(len(own) / share)):
            patch = self.verified[target]
            for name, effect, files in edited(self.upstream, target):
                yield name, effect, patch, Mutant(Kind.EDITED, f"{target}, {name}", files)

    def verdict(self, patch: Patch, mutant: Mutant) -> Verdict:
        """Judge one patch alone."""
        return judge([_alone(patch)], UPSTREAMS, self.tree(mutant), LOCKS)[1][patch.id]

    def outcome(self, mutant: Mutant, after: Judged) -> tuple[Outcome, list[str]]:
        """Return the outcome of a mutant, which `after` judges, and each verdict that does not follow."""
        tree = self.tree(mutant)
        gone = {subject for subject in self.subjects if not is_there(subject, tree)}
        wrong, concerned = [], []
        for patch in PATCHES:
            verdict, before = after.verdicts[patch.id], self.before.verdicts[patch.id]
            if _subjects(patch) & (gone | {mutant.subject}):
                concerned.append(verdict.state)
            if _subjects(patch) & gone:
                follows = self._follows(patch, verdict, gone, tree)
            else:
                # A name that still exists through an import answers as before, but a patch's target is not there.
                follows = verdict.state in (before.state, State.DRIFTED) or self._lost_its_patches(
                    patch, verdict, mutant
                )
                follows &= str(patch.target) != mutant.subject or verdict.state is not State.PENDING
            if not follows:
                wrong.append(f"{self.lock.pin}, {mutant}: {patch.id} is {verdict.state}, {verdict.reason}")
        if not concerned or (gone and after.revision.exact):
            wrong.append(f"{self.lock.pin}, {mutant}: revision {after.revision}, {len(concerned)} patches concerned")
        if wrong:
            return Outcome.SILENT, wrong
        return (Outcome.DRIFTED if State.DRIFTED in concerned else Outcome.EVIDENCE), []

    def _follows(self, patch: Patch, verdict: Verdict, gone: set[str], tree: SourceTree) -> bool:
        """Return whether the verdict on a patch follows from the tree and from the reason that a reader sees."""
        if verdict.state is State.DRIFTED:
            return True
        if "defines the same names" in verdict.reason:
            return verdict.state in (State.ABSENT, State.NATIVE)
        ask = self._asked(patch, gone, tree)
        if verdict.state is State.NATIVE:
            return patch.retired_by.answer(ask) is True and str(patch.retired_by) in verdict.reason
        if verdict.state is State.ABSENT:
            no = patch.requires is not None and patch.requires.answer(ask) is False
            return no and f"not ({patch.requires})" in verdict.reason
        needed = patch.retired_by.answer(ask) is False
        needed &= patch.requires is None or patch.requires.answer(ask) is True
        return verdict.state is State.PENDING and needed and str(patch.target) not in gone

    def _lost_its_patches(self, patch: Patch, verdict: Verdict, mutant: Mutant) -> bool:
        """Return whether a mutant broke the module by which upstream patches the target, so that ours is needed."""
        modules = {atom.subject for atom in patch.retired_by.atoms() if isinstance(atom, Assigns)}
        broken = mutant.subject.partition(":")[0] in modules and mutant.kind is not Kind.OTHER_MODULE_IMPORTED
        return broken and verdict.state is State.PENDING

    def _asked(self, patch: Patch, gone: set[str], tree: SourceTree) -> Callable[[Atom], bool | None]:
        lost = str(patch.target) in gone and self.lock.patches.get(patch.id) is Standing.NEEDED

        def ask(atom: Atom) -> bool | None:
            if atom.subject in gone:
                return None
            # If the target is gone, only a yes is evidence: a renamed subject is not mentioned either.
            return atom.holds(tree) or (None if lost else False)

        return ask


def _alone(patch: Patch) -> Feature:
    feature = Feature(patch.feature, "one patch alone")
    feature.include(patch)
    return feature


def _subjects(patch: Patch) -> set[str]:
    return {str(patch.target), *(atom.subject for atom in patch.atoms())}


def refused(verdict: Verdict) -> bool:
    """Return whether the patch is withheld from a user, without a note that forcing it is safe."""
    return verdict.state is State.DRIFTED and not verdict.only_wording


def pin_at(name: str, source: Path, beside: SourceTree) -> Pin:
    """Return the pin of that name; `beside` has the packages outside verl that verl's patches ask about."""
    return Pin(next(lock for lock in LOCKS["verl"] if lock.pin == name), source, beside)
