"""Data-parallel rollouts of 796871d7 with the published image's engine; see vllm_ascend_data_parallel.py."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from harness.pins import PINS

from .serving import PYTHONS, answers, engine_of
from .vllm_ascend_data_parallel import KINDS, TENSOR, WORLD

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).with_name("vllm_ascend_data_parallel.py")


@cache
def said(kind: str, folder: Path) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """Return the expected answers, and the answers of each rank."""
    ours = PINS["796871d7"].engine
    by = next((path for path in PYTHONS if engine_of(path) == ours), None)
    if by is None:
        pytest.skip("set VERL_NPU_VLLM_ASCEND to the Python of an environment with the published image's engine")
    found = answers(PROGRAM, kind, str(folder / kind), folder=folder, by=by, timeout=700)
    return found[-1], {each["rank"]: each for each in found[:-1]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data-parallel")


@pytest.mark.parametrize("when", ["awake", "after sleep"])
@pytest.mark.parametrize("kind", KINDS)
def test_engines_with_different_work_answer_as_transformers_does(kind: str, when: str, folder: Path) -> None:
    expected, ranks = said(kind, folder)
    for rank, each in ranks.items():
        whole = expected["expected"]
        assert each[when] == (whole if rank < TENSOR else [whole[0][: len(whole[0]) // 2]])


@pytest.mark.parametrize("kind", KINDS)
def test_each_rank_belongs_to_its_engine(kind: str, folder: Path) -> None:
    _, ranks = said(kind, folder)
    assert {rank: each["engine"] for rank, each in ranks.items()} == {0: [0, 2], 1: [0, 2], 2: [1, 2], 3: [1, 2]}


def test_all_ranks_of_both_engines_share_the_experts(folder: Path) -> None:
    _, ranks = said("qwen3_moe", folder)
    held = {rank: [shape[0] for shape in each["experts"]] for rank, each in ranks.items()}
    assert held == {rank: [1] for rank in range(WORLD)}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_proven_on_each_rank_and_one_bit_is_found_where_it_changed(kind: str, folder: Path) -> None:
    _, ranks = said(kind, folder)
    found = {rank: [len(differences) for differences in each["proofs"]] for rank, each in ranks.items()}
    assert found == {rank: [int(changed == rank) for changed in range(-1, WORLD)] for rank in range(WORLD)}
