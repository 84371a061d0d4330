"""A caller that leads past our patch is noticed, and a harmless change of a caller raises no alarm.

The verdict *drifted* says so, or the reason of a patch that fits.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from .callers import BYPASSING, HARMLESS, CallerEdit, Outcome, outcome
from .losses import PATCHES, Pin

_DAILY = (
    "v0.6.1: the group is made by ray.util's own name",
    "v0.7.1: the device's name asks torch for CUDA and not the constant",
    "v0.9.1: main returns before the check",
    "v0.7.1: a log line before the check",
    "v0.7.1: the set up is called in a method of the worker",
    "v0.9.1: a new module imports targets and calls them",
)
_AFTERWARDS = "what a caller does with the device, or with a value that it made of the result, is not followed"
_ANOTHER = "a lock is of one upstream: what verl does with transformers is no site, and a process shows it"
SILENT = {
    "v0.6.1: the device is set again afterwards": _AFTERWARDS,
    "v0.6.1: the merged environment is overwritten": _AFTERWARDS,
    "v0.7.1: a decorator of the caller leaves the call out": "the caller is reached by a caller of its own",
    "v0.6.1: the agent loop calls another method of the server": "a handle of another process has no class in source",
    "v0.7.1: Ulysses calls the kernel beneath": _ANOTHER,
    "v0.7.1: upstream assigns the rotary embedding in another module": _ANOTHER,
    "1dda039b: the caller computes the loss by a function of its own": "the target is two calls below that caller",
    "v0.7.1: the runner's worker overrides the update": "the base of a class that a function makes is a parameter",
}
"""The edits that lead past a patch unnoticed, and why."""
FALSE = {
    "1dda039b: the engine splits by a table of its own, which is made of what is patched": "no source tells when a "
    "table is made, after a patch or before it",
}
"""The edits that are reported as a bypass although they lead past no patch, and why."""

NIGHTLY = pytest.mark.nightly("patches", "verl_npu/registry", "verl_npu/features")
every_edit = pytest.mark.parametrize(
    "edit",
    [
        pytest.param(edit, id=str(edit), marks=() if str(edit) in _DAILY else NIGHTLY)
        for edit in (*BYPASSING, *HARMLESS)
    ],
)


@pytest.fixture
def pin_of(pin: Callable[[str], Pin]) -> Callable[[CallerEdit], Pin]:
    """Return a function that finds the pin of an edit; it skips recipes that the wheel does not have."""

    def of(edit: CallerEdit) -> Pin:
        here = pin(edit.pin)
        if edit.path.startswith("recipe/") and edit.path not in here.upstream.files:
            pytest.skip(f"the wheel of {edit.pin} has no recipes")
        return here

    return of


@every_edit
def test_an_edit_leaves_the_target_as_it_is(edit: CallerEdit, pin_of: Callable[[CallerEdit], Pin]) -> None:
    here = pin_of(edit)
    mutant = edit.of(here.upstream)
    for path, data in mutant.files.items():
        assert data is not None
        ast.parse(data, path)
        assert path not in here.upstream.files or data != here.upstream.files[path]
    # The patch is needed, or else nothing could lead past it.
    assert [here.before.verdicts[patch].state.value for patch in edit.patches] == ["pending"] * len(edit.patches)
    target = next(patch.target for patch in PATCHES if patch.id == edit.patches[0])
    before, after = (list(map(ast.dump, tree.nodes(target))) for tree in (here.tree(), here.tree(mutant)))
    assert before == after
    assert before


@every_edit
def test_what_leads_past_a_patch_is_told_and_nothing_else_is(
    edit: CallerEdit, pin_of: Callable[[CallerEdit], Pin]
) -> None:
    here = pin_of(edit)
    verdicts = here.judged(edit.of(here.upstream)).verdicts
    said = {patch: (verdicts[patch].state.value, verdicts[patch].reason) for patch in edit.patches}
    found = outcome(edit, verdicts)
    assert (found is Outcome.SILENT) is (str(edit) in SILENT), said
    assert (found is Outcome.FALSE) is (str(edit) in FALSE), said


def test_each_edit_has_a_name_of_its_own_and_names_patches() -> None:
    names = list(map(str, (*BYPASSING, *HARMLESS)))
    assert len(names) == len(set(names))
    assert {patch for edit in (*BYPASSING, *HARMLESS) for patch in edit.patches} <= {patch.id for patch in PATCHES}
    assert {*SILENT} <= set(map(str, BYPASSING))
    assert {*FALSE} <= set(map(str, HARMLESS))
