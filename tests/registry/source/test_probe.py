"""Questions to an upstream's source."""

from __future__ import annotations

import pytest

from verl_npu.registry.source.probe import AllOf, AnyOf, Not, Probe, Reads

GONE, YES, NO = Reads("up.gone", "x"), Reads("up.yes", "x"), Reads("up.no", "x")


@pytest.mark.parametrize(
    ("probe", "answer"),
    [
        (GONE, None),
        (Not(GONE), None),
        (Not(YES), False),
        (Not(NO), True),
        (AnyOf(GONE, YES), True),
        (AnyOf(GONE, NO), None),
        (AllOf(GONE, NO), False),
        (AllOf(GONE, YES), None),
        (AllOf(Not(NO), Not(GONE)), None),
    ],
    ids=str,
)
def test_no_question_is_answered_by_what_is_gone(probe: Probe, answer: bool | None) -> None:
    answers = {str(GONE): None, str(YES): True, str(NO): False}
    assert probe.answer(lambda atom: answers[str(atom)]) is answer
