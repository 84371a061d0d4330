"""Each row of the table by which patches are judged: the evidence on one side, the state on the other."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from verl_npu.registry.judge import verdict
from verl_npu.registry.judge.absence import Absence
from verl_npu.registry.judge.lock import Record
from verl_npu.registry.judge.reach import Reach
from verl_npu.registry.judge.verdict import TABLE, Verdict
from verl_npu.registry.patch import Action
from verl_npu.registry.source.tree import Target
from verl_npu.registry.state import State

HERE = Record(kind="function", signature="(batch)", ends=("function",), fingerprint="1")
NOT_NEEDED = Absence("up.ops:step", False, "not there at v1")
GONE = Absence("up.ops:step", True, "up.ops:step is gone")


def evidence(action: Action = Action.WRAP, *, skips: bool = False, **found: object) -> SimpleNamespace:
    """Return the evidence for a patch that fits, changed as a test says."""
    patch = SimpleNamespace(
        target=Target("up.ops", "step"),
        action=action,
        may_skip=skips,
        relies_on_source=skips or action.relies_on_source,
        retired_by=SimpleNamespace(atoms=lambda: []),
        requires=SimpleNamespace(atoms=lambda: []),
    )
    usual: dict[str, object] = {
        "patch": patch,
        "known": SimpleNamespace(nearest=SimpleNamespace(pin="v1", targets={}), exact=False),
        "tree": SimpleNamespace(words=lambda target: "words"),
        "absence": None,
        "is_outside": False,
        "is_gone": False,
        "is_shown_native": False,
        "is_shown_absent": False,
        "seems_native": False,
        "seems_absent": False,
        "claims": (),
        "gone": [],
        "lost": lambda atoms: [],
        "unread": "",
        "changed_collaborator": None,
        "overwriting_package": "",
        "reach": Reach(""),
        "adds": action is Action.ADD,
        "observed": HERE,
        "needed": {"v1": HERE},
        "alike": {"v1": HERE},
        "restated": frozenset(),
        "verified": lambda reason: Verdict(State.PENDING, reason),
    }
    return SimpleNamespace(**{**usual, **found})


EXACT = SimpleNamespace(nearest=SimpleNamespace(pin="v1", targets={Target("up.ops", "step"): HERE}), exact=True)
ROWS = {
    "_not_installed": (evidence(is_outside=True, absence=NOT_NEEDED), State.ABSENT),
    "_done_by_upstream": (evidence(is_shown_native=True), State.NATIVE),
    "_patched_by_upstream": (evidence(is_shown_native=True, claims=("up.ops.step",)), State.NATIVE),
    "_own_patch_has_no_target": (evidence(is_shown_native=True, claims=("up.ops.step",), absence=GONE), State.FAILED),
    "_not_needed": (evidence(is_shown_absent=True), State.ABSENT),
    "_gone": (evidence(gone=[GONE], absence=GONE), State.DRIFTED),
    "_absent": (evidence(absence=NOT_NEEDED), State.ABSENT),
    "_unclear": (evidence(seems_native=None, unread="a table that is made elsewhere"), State.DRIFTED),
    "_collaborator_changed": (evidence(changed_collaborator=("up.help:scale", "nothing of that name")), State.DRIFTED),
    "_added": (evidence(Action.ADD), State.PENDING),
    "_exactly_a_pin": (evidence(known=EXACT), State.PENDING),
    "_overwritten": (evidence(overwriting_package="up"), State.DRIFTED),
    "_same_as_at_a_pin": (evidence(), State.PENDING),
    "_reworded": (
        evidence(Action.REPLACE, observed=replace(HERE, fingerprint="2"), alike={"v1": replace(HERE, words="words")}),
        State.DRIFTED,
    ),
    "_may_skip_changes": (evidence(skips=True, observed=replace(HERE, fingerprint="2")), State.PENDING),
    "_different": (evidence(alike={}, needed={"v1": replace(HERE, signature="(batch, by)")}), State.DRIFTED),
}


def decided(found: SimpleNamespace) -> tuple[str, Verdict]:
    rows = ((row.__name__, row(found)) for row in TABLE)  # type: ignore[arg-type]
    return next((name, said) for name, said in rows if said is not None)


@pytest.mark.parametrize(("found", "state"), ROWS.values(), ids=ROWS)
def test_a_row_decides_by_its_evidence(found: SimpleNamespace, state: State, request: pytest.FixtureRequest) -> None:
    row, said = decided(found)
    assert (row, said.state) == (request.node.callspec.id, state)
    assert said.reason


def test_every_row_has_its_test() -> None:
    assert list(ROWS) == [row.__name__ for row in TABLE]
    assert all(row.__doc__ for row in verdict.TABLE)


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"seems_native": None, "unread": "a table"}, "is retired"),
        ({"seems_native": True}, "is retired"),
        ({"seems_native": False, "seems_absent": True}, "is required"),
    ],
)
def test_what_cannot_be_told_is_the_question_that_was_asked(given: dict[str, object], asked: str) -> None:
    found = evidence(**given)
    found.patch.retired_by, found.patch.requires = "is retired", "is required"
    row, said = decided(found)
    assert (row, said.expected) == ("_unclear", f"proof that {asked}")
