"""Weights handed over wrongly to the real vllm-ascend 0.11.0, whose graphs were captured before.

Each wrong way is found and named, and right syncs between them are not; see vllm_ascend_mutants.py. It runs where
VERL_NPU_VLLM_ASCEND is set, as tests/e2e/test_vllm_ascend.py does.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from .serving import answers
from .vllm_ascend_mutants import ASLEEP, MUTANTS, Mutant, copies_that_were_made_anew

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).with_name("vllm_ascend_mutants.py")
FULL, PIECES = "FULL_DECODE_ONLY", "PIECEWISE"
HELD = "the engine holds them bit for bit"


@cache
def said(mode: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the answer to each way, by name; one engine takes them all."""
    return {each["way"]: each for each in answers(PROGRAM, str(folder / mode), mode, folder=folder)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutants")


def is_captured(mutant: Mutant, mode: str) -> bool:
    """Return whether graphs contain the weight: graphs of pieces do not contain attention."""
    return mode == FULL or mutant.way is not copies_that_were_made_anew


WRONG = [(mutant, mode) for mode in (FULL, PIECES) for mutant in MUTANTS if is_captured(mutant, mode)]


@pytest.mark.parametrize(("mutant", "mode"), WRONG, ids=[f"{mutant.way.__name__}-{mode}" for mutant, mode in WRONG])
def test_a_wrong_way_is_named_and_answers_wrongly(mutant: Mutant, mode: str, folder: Path) -> None:
    found = said(mode, folder)[mutant.way.__name__]
    assert mutant.name in found["proof"]
    assert mutant.words in found["proof"]
    assert not (found["right"] and found["next right"])
    assert bool(found["compared"]) is mutant.compared


@pytest.mark.parametrize("mode", [FULL, PIECES])
def test_a_copy_to_a_sleeping_address_is_an_error(mode: str, folder: Path) -> None:
    assert "is not mapped: what slept in it was not woken up" in said(mode, folder)[ASLEEP]["proof"]


@pytest.mark.parametrize("mode", [FULL, PIECES])
def test_nothing_is_named_where_nothing_is_wrong(mode: str, folder: Path) -> None:
    """Before the first wrong way, and after each."""
    ways = said(mode, folder)
    restored = [each for way in ways.values() for each in way["restored"]]
    assert len(restored) == 2 * len(MUTANTS) + 2
    assert all(each == {"proof": HELD, "right": True} for each in restored)


def test_copies_that_no_graph_reads_may_be_made_anew(folder: Path) -> None:
    found = said(PIECES, folder)[copies_that_were_made_anew.__name__]
    assert found["proof"] == HELD
    assert found["right"]
    assert found["next right"]
