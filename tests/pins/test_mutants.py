"""Whatever upstream does to the subjects of a patch, no verdict is false: mutants of every pin.

Each day covers a fixed share of one pin's mutants, and each night all of every pin.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import groupby

import pytest

from verl_npu.features import UPSTREAMS
from verl_npu.registry.judge.verdict import judge
from verl_npu.registry.patch import Action
from verl_npu.registry.source.tree import SourceTree
from verl_npu.registry.state import State

from .edits import Effect
from .losses import FEATURES, LOCKS, PATCHES, Outcome, Pin, refused
from .mutants import Kind, Mutant, changes, harmless

LOSSES = (
    Kind.MODULE_GONE,
    Kind.MODULE_MOVED,
    Kind.TARGET_RENAMED,
    Kind.OTHER_MODULE,
    Kind.OTHER_MODULE_IMPORTED,
    Kind.OTHER_CLASS,
    Kind.CLASS_RENAMED,
)

# Every pin's targets are edited in the same ways. All mutants of a pin take a minute or two.
NIGHTLY = pytest.mark.nightly("patches", "verl_npu/registry")
pins = pytest.mark.parametrize(
    ("name", "share"),
    [
        pytest.param("v0.6.1", 240, id="a share of v0.6.1"),
        *(pytest.param(lock.pin, 1, id=lock.pin, marks=NIGHTLY) for lock in LOCKS["verl"]),
    ],
)


def shared(mutants: Iterable[Mutant], share: int) -> list[Mutant]:
    """Return one of `share` mutants of each kind, at random but always the same ones."""
    kinds = groupby(sorted(mutants, key=lambda mutant: mutant.kind.value), key=lambda mutant: mutant.kind)
    groups = [list(group) for _, group in kinds]
    return [one for group in groups for one in random.Random(0).sample(group, math.ceil(len(group) / share))]


@NIGHTLY
@pytest.mark.parametrize("name", [lock.pin for lock in LOCKS["verl"]])
def test_what_is_gone_is_drift_or_there_is_evidence(name: str, pin: Callable[[str], Pin]) -> None:
    here = pin(name)
    mutants = list(here.losses())
    assert len(mutants) >= 120
    assert {mutant.kind for mutant in mutants} == set(LOSSES)
    outcomes = [here.outcome(mutant, here.judged(mutant)) for mutant in mutants]
    assert [line for _, wrong in outcomes for line in wrong] == []
    # A judgment that finds evidence everywhere would be of no use.
    counts = Counter(outcome for outcome, _ in outcomes)
    assert counts[Outcome.DRIFTED] > 3 * counts[Outcome.EVIDENCE]


@pins
def test_what_changes_no_code_changes_no_verdict(name: str, share: int, pin: Callable[[str], Pin]) -> None:
    here = pin(name)
    for mutant in harmless(here.upstream, here.modules if share == 1 else here.modules[::8]):
        judged = here.judged(mutant)
        # The files differ, but nothing in them that is used.
        assert (judged.revision.nearest_pin, judged.revision.differs) == (here.lock.pin, ()), mutant
        assert not judged.revision.exact, mutant
        assert {id: v.state for id, v in judged.verdicts.items()} == {
            id: v.state for id, v in here.before.verdicts.items()
        }, mutant


@pins
def test_a_decorator_or_a_second_definition_is_drift(name: str, share: int, pin: Callable[[str], Pin]) -> None:
    here = pin(name)
    verified = {
        str(patch.target): patch
        for patch in PATCHES
        if here.before.verdicts[patch.id].state is State.PENDING
        and patch.action in (Action.REPLACE, Action.SET, Action.WRAP)
    }
    mutants = list(changes(here.upstream, [patch.target for patch in verified.values()]))
    for mutant in shared(mutants, share):
        verdict = here.judged(mutant).verdicts[verified[mutant.subject].id]
        assert verdict.state is State.DRIFTED, (mutant, verdict)


# A target may be edited so that it is called as at another pin: a wrapper fits that, too.
AS_AT_ANOTHER = ("parameter gone", "parameter by keyword only", "default gone")


@pins
def test_what_is_called_otherwise_is_drift_and_what_differs_in_words_is_not(
    name: str, share: int, pin: Callable[[str], Pin]
) -> None:
    here = pin(name)
    chosen = list(here.of_edits(share))
    assert len(chosen) * share > 1000
    wrong: dict[Effect, list[str]] = {effect: [] for effect in Effect}
    for edit, effect, patch, mutant in chosen:
        verdict = here.verdict(patch, mutant)
        if effect is Effect.GUTTED:
            # It is called as before: everything that a wrapper relies on is there.
            expected = patch.action is Action.WRAP or verdict.state is not State.PENDING
        else:
            elsewhere = edit in AS_AT_ANOTHER and not verdict.reason.endswith(f" {here.lock.pin}")
            expected = refused(verdict) is (effect is Effect.CHANGED) or elsewhere
        if not expected:
            wrong[effect].append(f"{mutant}: {patch.id} is {verdict.state}, {verdict.reason}")
    assert wrong[Effect.CHANGED] + wrong[Effect.GUTTED] == []
    # A default that our wrapper gives as well is refused if upstream's is another one.
    assert len(wrong[Effect.HARMLESS]) * 50 <= sum(effect is Effect.HARMLESS for _, effect, _, _ in chosen), wrong


def test_without_packages_every_patch_is_absent() -> None:
    names = [package for upstream in UPSTREAMS for package in upstream.packages]
    _, verdicts = judge(FEATURES, UPSTREAMS, SourceTree(dict.fromkeys(names)), LOCKS)
    assert {verdict.state for verdict in verdicts.values()} == {State.ABSENT}
    assert all("not installed here" in verdict.reason for verdict in verdicts.values())
