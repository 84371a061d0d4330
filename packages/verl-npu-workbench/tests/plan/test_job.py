"""A rank that runs a stranger's verl answers with an outcome, or with one error."""

from __future__ import annotations

import dataclasses
import json

import pytest
from verl_npu_workbench.plan.job import Outcome, PhaseCost, Point

GOOD = Outcome(
    rank=0,
    phases=[PhaseCost("load", 9, 5, {"weights": 5}, messages=[("all_reduce", 8, 2, 4.0)])],
    timeline=[Point("load", {"weights": 5})],
    seconds=1.5,
)


def told(**changed: object) -> dict[str, object]:
    return {**json.loads(json.dumps(dataclasses.asdict(GOOD))), **changed}


def cost(**changed: object) -> dict[str, object]:
    return told(phases=[{**dataclasses.asdict(GOOD.phases[0]), "messages": [], **changed}])


def test_an_outcome_is_the_same_after_json() -> None:
    assert told() == json.loads(json.dumps(dataclasses.asdict(Outcome.of_json(told()))))
    assert Outcome.of_json(told()).phases == GOOD.phases


WRONG = {
    "nothing": {},
    "no phases": told(phases=[]),
    "an unknown part": told(more=1),
    "a phase that is a text": told(phases=["load"]),
    "phases that are no list": told(phases={}),
    "an unknown phase": cost(phase="x"),
    "an unknown holder": cost(holders={"x": 1}),
    "a part that is missing": told(phases=[{"phase": "load"}]),
    "a text for a number": cost(peak="9"),
    "a truth for a number": cost(peak=True),
    "less than nothing": cost(peak=-1),
    "no number": cost(seconds=float("nan")),
    "without end": cost(seconds=float("inf")),
    "too large": cost(peak=10**30),
    "a part of a message": cost(messages=[["all_reduce", 8]]),
    "an error that is no text": told(error=1),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG.keys())
def test_an_answer_of_another_form_is_refused(answer: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Outcome.of_json(answer)
