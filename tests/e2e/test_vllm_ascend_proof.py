"""What the proof of weights says of a real vllm-ascend that got corrupted ones; see vllm_ascend_proof.py."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from ..virtual.processes import environment
from .vllm_ascend_proof import CASES, KINDS, Case

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).with_name("vllm_ascend_proof.py")


@cache
def answers_of(python: str, kind: str, folder: Path) -> list[tuple[str, list[dict[str, list[list[str]]]]]]:
    variables = {
        "VERL_NPU_VIRTUAL": "2",
        "VERL_NPU_VIRTUAL_MEMORY": "2",
        "VLLM_VERSION": "0.11.0",
        "VLLM_ASCEND_ENABLE_NZ": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join((str(PROGRAM.parent), str(PROGRAM.parents[2]))),
    }
    done = subprocess.run(
        [python, str(PROGRAM), kind, str(folder / kind)],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    return [tuple(json.loads(line.removeprefix("ANSWER "))) for line in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proof")


@pytest.fixture(scope="module")
def python() -> str:
    named = os.environ.get("VERL_NPU_VLLM_ASCEND")
    if not named:
        pytest.skip("set VERL_NPU_VLLM_ASCEND to the Python of an environment with vllm-ascend")
    return named


@pytest.mark.parametrize("kind", KINDS)
def test_a_sync_that_nobody_disturbed_is_proven_whole_on_both_ranks(python: str, kind: str, folder: Path) -> None:
    ranks = [rank for name, ranks in answers_of(python, kind, folder) if name == "nothing" for rank in ranks]
    assert ranks
    assert {(len(rank["found"]), len(rank["unknown"])) for rank in ranks} == {(0, 0)}


@pytest.mark.parametrize(
    ("kind", "case"),
    [pytest.param(kind, case, id=f"{kind}: {case.name}") for case in CASES for kind in case.kinds],
)
def test_a_corrupted_weight_is_named_on_the_ranks_that_hold_it(
    python: str, kind: str, case: Case, folder: Path
) -> None:
    ((_, ranks),) = [answer for answer in answers_of(python, kind, folder) if answer[0] == case.name]
    for number, rank in enumerate(ranks):
        said = [found for _, source, found in rank["found"] if source == case.source]
        if number in case.ranks:
            assert len(said) >= 1
            assert case.words in said[0]
        else:
            assert rank["found"] == []
