from __future__ import annotations

import pytest
from verl_npu_workbench.prove.corpus import Key, Kind, Observation, Other, compared

from .conftest import operator, result

UNIT = 2.0**-23


def differences(first: Observation, second: Observation) -> list[Other]:
    return [each.how for each in compared([first], [second])]


def test_the_same_is_no_difference() -> None:
    assert differences(operator(), operator()) == []
    assert list(compared([operator()], [operator(key=Key(Kind.OPERATOR, "exp", "bfloat16"))])) == []


@pytest.mark.parametrize(
    ("changed", "other"),
    [
        (operator(said="RuntimeError: no", results=()), Other.REFUSES),
        (operator(results=(result(dtype="torch.float64"),)), Other.LOOKS),
        (operator(results=(result(shape="[3]"),)), Other.LOOKS),
        (operator(results=()), Other.LOOKS),
        (operator(results=(result(digest="1" * 32, sample=(1.0, 2.0 + 4 * UNIT)),)), Other.ROUNDS),
        (operator(results=(result(digest="1" * 32, sample=(1.0, 2.0 + 40 * UNIT)),)), Other.VALUES),
        (operator(results=(result(digest="1" * 32, sample=(1.0,)),)), Other.VALUES),
    ],
)
def test_an_operator_that_answers_otherwise_is_told(changed: Observation, other: Other) -> None:
    assert differences(operator(), changed) == [other]


def test_what_is_answered_and_should_be_refused_is_told() -> None:
    refused = operator(said="RuntimeError: no", results=())
    assert differences(refused, operator()) == [Other.ANSWERS]
    assert differences(refused, operator(said="RuntimeError: never", results=())) == [Other.WORDS]


def test_memory_is_compared_to_the_byte() -> None:
    def taken(size: float) -> Observation:
        return Observation(key=Key(Kind.MEMORY, "empty", "1 B"), figures={"allocated": size})

    assert differences(taken(512), taken(512)) == []
    assert differences(taken(512), taken(1024)) == [Other.MEMORY]
