"""Questions to an upstream's source."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_npu.registry.source.probe import AllOf, AnyOf, IsRemote, Not, Probe, Reads
from verl_npu.registry.source.tree import SourceTree

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


@pytest.mark.parametrize(
    ("written", "is_one"),
    [
        ("@ray.remote(num_cpus=1)\nclass Runner: ...", True),
        ("@ray.remote\nclass Runner: ...", True),
        ("class Runner: ...\nActor = ray.remote(num_cpus=1)(Runner)", False),
        ("@dataclass\nclass Runner: ...", False),
    ],
)
def test_a_class_is_an_actor_if_a_decorator_makes_one_of_it(written: str, is_one: bool, tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "__init__.py").write_text(f"import ray\nfrom dataclasses import dataclass\n\n\n{written}\n")
    assert IsRemote("up:Runner").holds(SourceTree.at(tmp_path, ("up",))) is is_one
