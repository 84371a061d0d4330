"""The proof of weights finds the weights that were corrupted for a real vllm-ascend; see vllm_ascend_proof.py."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from .serving import answers
from .vllm_ascend_proof import CASES, KINDS, Case

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).with_name("vllm_ascend_proof.py")


@cache
def syncs(kind: str, folder: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return each rank's answer after each sync, by the name of the corruption; one engine takes them all."""
    # Its workers import the program by its name.
    path = os.pathsep.join((str(PROGRAM.parent), str(PROGRAM.parents[2])))
    return answers(PROGRAM, kind, str(folder / kind), folder=folder, timeout=900, PYTHONPATH=path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proof")


@pytest.mark.parametrize("kind", KINDS)
def test_a_sync_that_nobody_disturbed_is_proven_whole_on_both_ranks(kind: str, folder: Path) -> None:
    ranks = [rank for name, ranks in syncs(kind, folder) if name == "nothing" for rank in ranks]
    assert ranks
    assert {(len(rank["found"]), len(rank["unknown"])) for rank in ranks} == {(0, 0)}


@pytest.mark.parametrize(
    ("kind", "case"),
    [pytest.param(kind, case, id=f"{kind}: {case.name}") for case in CASES for kind in case.kinds],
)
def test_a_corrupted_weight_is_named_on_the_ranks_that_hold_it(kind: str, case: Case, folder: Path) -> None:
    ((_, ranks),) = [answer for answer in syncs(kind, folder) if answer[0] == case.name]
    for number, rank in enumerate(ranks):
        said = [found for _, source, found in rank["found"] if source == case.source]
        if number in case.ranks:
            assert len(said) >= 1
            assert case.words in said[0]
        else:
            assert rank["found"] == []
