"""Questions to an upstream's source."""

from __future__ import annotations

import pytest

from verl_npu.registry.source.probe import AllOf, AnyOf, Mentions, Not, Passes, Probe

SOURCE = """
def build(path, config):
    return load(path, how="fast", retries=3, **config), other(how=config.how)

def gentle(path, how="fast"):
    return load(path, how=how)
"""


@pytest.mark.parametrize(
    ("target", "keyword", "value", "holds"),
    [
        ("build", "how", "fast", True),
        ("build", "how", "slow", False),
        ("build", "retries", "3", False),
        ("gentle", "how", "fast", False),
        ("absent", "how", "fast", False),
    ],
)
def test_passes_sees_a_constant_that_a_call_passes(
    target: str, keyword: str, value: str, holds: bool, package
) -> None:
    package.write("up.model", SOURCE)
    probe = Passes(f"up.model:{target}", keyword, value)
    assert probe.holds(package.tree()) is holds
    assert [atom.subject for atom in probe.atoms()] == [f"up.model:{target}"]
    assert str(probe) == f"up.model:{target} passes {keyword}={value!r}"


GONE, YES, NO = Mentions("up.gone", "x"), Mentions("up.yes", "x"), Mentions("up.no", "x")


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
