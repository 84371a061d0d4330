"""What patches use of upstream beside their targets: all of it is declared, and stands at a pin."""

from __future__ import annotations

import pytest

from verl_npu.features import UPSTREAMS, load, locks_folder
from verl_npu.registry.judge.lock import read_locks
from verl_npu.registry.patch import Patch
from verl_npu.registry.source.named import Collaborator, Name, Setting
from verl_npu.registry.source.probe import Calls, Reads

from .used_names import UNDECLARED, Used, used_by

PATCHES = {patch.id: patch for feature in load() for patch in feature}
LOCKS = {package: read_locks(locks_folder(), upstream.name) for upstream in UPSTREAMS for package in upstream.packages}


def places(patch: Patch) -> list[Name | Setting]:
    return [place for use in patch.uses for place in use.places]


def names(place: Name | Setting) -> set[str]:
    """What code writes to reach a collaborator."""
    return {place.target.name} if isinstance(place, Name) else set(place.key.split("."))


def asked(patch: Patch) -> set[str]:
    """What the target and the questions about upstream are about already."""
    read = {atom.name for atom in patch.atoms() if isinstance(atom, Reads)}
    called = {part for atom in patch.atoms() if isinstance(atom, Calls) for part in atom.function.split(".")}
    return (
        {
            str(patch.target).replace(":", "."),
            *(atom.subject.replace(":", ".") for atom in patch.atoms()),
        }
        | read
        | called
    )


def within(name: str, other: str) -> bool:
    return name == other or other.startswith(f"{name}.")


def undeclared(patch: Patch, used: Used) -> set[str]:
    """What the code of a patch uses and its declaration does not name."""
    declared = [place.target.dotted for place in places(patch) if isinstance(place, Name)]
    # Of an object that upstream defines, what another library gives it is no name of upstream's.
    owners = {each.rpartition(".")[0] if each.rpartition(".")[2] in UNDECLARED else each for each in used.imported}
    imported = {name for name in owners if not any(within(name, other) for other in declared)}
    known = set().union(*map(names, places(patch))) | asked(patch)
    attributes = {name for name in used.attributes - known if {name, f"{patch.id}: {name}"}.isdisjoint(UNDECLARED)}
    return {*(imported - asked(patch)), *attributes}


def unused(patch: Patch, used: Used) -> set[str]:
    """What the declaration of a patch names and its code does not use."""
    ends = {name.rpartition(".")[2] for name in used.imported} | used.attributes

    def is_used(place: Name | Setting) -> bool:
        if isinstance(place, Setting):
            return place.key.rpartition(".")[2] in ends
        return place.target.name in ends or any(within(name, place.target.dotted) for name in used.imported)

    return {use.text for use in patch.uses if not any(map(is_used, use.places))}


def otherwise_called(patch: Patch, used: Used) -> set[str]:
    """What the code of a patch calls with other arguments than its declaration says, or than it says nothing of."""
    calls = {
        (place.target.name, len(place.positional), tuple(sorted(place.keywords)))
        for place in places(patch)
        if isinstance(place, Name) and place.passed is not None
    }
    declared = {place.target.name for place in places(patch) if isinstance(place, Name)}
    return {f"{name}, {count}, {words}" for name, count, words in used.calls - calls if name in declared}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_what_the_code_of_a_patch_uses_is_declared(patch: Patch) -> None:
    assert undeclared(patch, used_by(patch)) == set()


@pytest.mark.parametrize("patch", [patch for patch in PATCHES.values() if patch.uses], ids=lambda patch: patch.id)
def test_what_is_declared_is_used_by_the_code(patch: Patch) -> None:
    used = used_by(patch)
    assert (unused(patch, used), otherwise_called(patch, used)) == (set(), set())


USES = {use.text: use for patch in PATCHES.values() for use in patch.uses}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_each_collaborator_stands_at_a_pin(use: Collaborator) -> None:
    assert any(lock.uses[use.text] for lock in LOCKS[use.package])
