"""Whatever upstream does to what a patch is about, nothing false is said of it: mutants of every pin.

`python -m tests.pins` counts them. Without the checkouts of `VERL_NPU_UPSTREAMS` a fixed share of them is judged.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from verl_npu.features import UPSTREAMS
from verl_npu.registry.judge.verdict import judge
from verl_npu.registry.patch import Action
from verl_npu.registry.source.probe import Mentions
from verl_npu.registry.source.tree import SourceTree
from verl_npu.registry.state import State

from .losses import FEATURES, LOCKS, PATCHES, Outcome, Pin, pin_at
from .mutants import PACKAGES, Kind, Mutant, changes, harmless, other_answers

# All of them take a minute or two for each pin.
SHARE = 1 if "VERL_NPU_UPSTREAMS" in os.environ else 6
WHOLE = ("v0.6.1", "v0.9.1")
"""The pins of which all mutants are judged without the checkouts, too."""
LOSSES = (
    Kind.MODULE_GONE,
    Kind.MODULE_MOVED,
    Kind.TARGET_RENAMED,
    Kind.OTHER_MODULE,
    Kind.OTHER_MODULE_IMPORTED,
    Kind.OTHER_CLASS,
    Kind.CLASS_RENAMED,
)

# Every pin's targets are edited in the same ways: each change sees one pin, each night all of them.
ALL_PINS = pytest.mark.nightly("patches", "verl_npu/features", "verl_npu/registry")
pins = pytest.mark.parametrize(
    "name", [pytest.param(lock.pin, marks=() if lock.pin == "v0.6.1" else ALL_PINS) for lock in LOCKS["verl"]]
)


@pytest.fixture(scope="module")
def pin(sources: Callable[[str, str], list[Path]]) -> Callable[[str], Pin]:
    beside = SourceTree.at(sources("transformers", "4.57.6")[0], ("transformers",))

    @cache
    def find(name: str) -> Pin:
        return pin_at(name, sources("verl", name)[0], beside)

    return find


def share(mutants: list[Mutant]) -> list[Mutant]:
    # Not each sixth: mutants of a target come in the order of their kinds.
    return random.Random(0).sample(mutants, math.ceil(len(mutants) / SHARE))


@pins
@pytest.mark.parametrize("kind", LOSSES, ids=lambda kind: kind.value)
def test_what_is_gone_is_drift_or_there_is_evidence(name: str, kind: Kind, pin: Callable[[str], Pin]) -> None:
    here = pin(name)
    mutants = share([mutant for mutant in here.losses() if mutant.kind is kind])
    assert mutants
    assert [line for mutant in mutants for line in here.outcome(mutant)[1]] == []


@pins
def test_evidence_is_the_exception(name: str, pin: Callable[[str], Pin]) -> None:
    # A judgement that finds it everywhere would be of no use. All of them count: a share's ratio is its chance.
    if SHARE > 1 and name not in WHOLE:
        pytest.skip("all mutants of this pin are judged where VERL_NPU_UPSTREAMS is set, as every night")
    here = pin(name)
    outcomes = [here.outcome(mutant)[0] for mutant in here.losses()]
    assert outcomes.count(Outcome.DRIFTED) > 3 * outcomes.count(Outcome.EVIDENCE)


def test_there_are_enough_mutants(pin: Callable[[str], Pin]) -> None:
    for lock in LOCKS["verl"]:
        mutants = list(pin(lock.pin).losses())
        assert {mutant.kind for mutant in mutants} == set(LOSSES)
        assert len(mutants) >= 120


@pins
def test_what_changes_no_code_changes_no_verdict(name: str, pin: Callable[[str], Pin]) -> None:
    here = pin(name)
    for mutant in harmless(here.upstream, here.modules):
        judged = here.judged(mutant)
        assert judged.revision == here.before.revision, mutant
        assert {id: v.state for id, v in judged.verdicts.items()} == {
            id: v.state for id, v in here.before.verdicts.items()
        }, mutant


@pins
def test_another_answer_is_another_revision_and_is_believed(name: str, pin: Callable[[str], Pin]) -> None:
    here = pin(name)
    asked = {str(atom): atom for patch in PATCHES for atom in patch.atoms() if isinstance(atom, Mentions)}
    atoms = [atom for atom in asked.values() if atom.target.partition(".")[0] in PACKAGES]
    mutants = share(list(other_answers(here.upstream, atoms)))
    assert mutants
    for mutant in mutants:
        tree, judged = here.tree(mutant), here.judged(mutant)
        assert asked[mutant.subject].holds(tree) is not here.lock.answers[mutant.subject], mutant
        assert not judged.revision.exact, mutant
        for patch in PATCHES:
            if mutant.subject not in map(str, patch.atoms()) or patch.target.package not in tree:
                continue
            state = judged.verdicts[patch.id].state
            retired = bool(patch.retired_by.answer(lambda atom, tree=tree: atom.holds(tree)))
            assert (state is State.NATIVE) is retired, (patch.id, mutant)
            if not retired and patch.requires is not None:
                required = patch.requires.answer(lambda atom, tree=tree: atom.holds(tree))
                assert required or state is State.ABSENT, (patch.id, mutant)


@pins
def test_a_decorator_or_a_second_definition_is_drift_for_what_is_replaced(
    name: str, pin: Callable[[str], Pin]
) -> None:
    # What is only wrapped is looked at when it is applied: tests/registry/apply/test_replacement.py.
    here = pin(name)
    verified = {
        str(patch.target): patch
        for patch in PATCHES
        if here.before.verdicts[patch.id].state is State.VERIFIED and patch.action in (Action.REPLACE, Action.SET)
    }
    for mutant in share(list(changes(here.upstream, [patch.target for patch in verified.values()]))):
        verdict = here.judged(mutant).verdicts[verified[mutant.subject].id]
        assert verdict.state is State.DRIFTED, (mutant, verdict)


@pins
def test_a_second_definition_with_other_parameters_is_drift_for_what_is_wrapped(
    name: str, pin: Callable[[str], Pin]
) -> None:
    here = pin(name)
    verified = {
        str(patch.target): patch
        for patch in PATCHES
        if here.before.verdicts[patch.id].state is State.VERIFIED and patch.action is Action.WRAP
    }
    mutants = list(changes(here.upstream, [patch.target for patch in verified.values()]))
    for mutant in share([mutant for mutant in mutants if mutant.kind is Kind.REDEFINED]):
        assert here.judged(mutant).verdicts[verified[mutant.subject].id].state is State.DRIFTED, mutant


def test_of_nothing_nothing_is_native() -> None:
    names = [package for upstream in UPSTREAMS for package in upstream.packages]
    _, verdicts = judge(FEATURES, UPSTREAMS, SourceTree(dict.fromkeys(names)), LOCKS)
    assert {verdict.state for verdict in verdicts.values()} == {State.ABSENT}
    assert all("not installed here" in verdict.reason for verdict in verdicts.values())
