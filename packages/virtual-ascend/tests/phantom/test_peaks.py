"""What a training costs an NPU is the same to the byte whether its tensors are phantoms or not: its peak, what is
left, and how many bytes and blocks were allocated in all.

Cases of Megatron need VERL_NPU_UPSTREAMS, a folder with `mindspeed-f2b0977e/` and `megatron-0.12.1/`.
All run with another torch if VIRTUAL_ASCEND_PHANTOM_PYTHON names a Python that has it, with transformers and peft.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
from virtual_ascend.testing import environment, pythonpath_and

Costs: TypeAlias = "dict[str, list[int] | str]"
PROJECT = Path(__file__).parents[2]
PHANTOM = "0.03125"  # MiB: most tensors of these small models are larger

# By program, the cases that are measured in each run; the others take a minute.
SINGLE = ("sdpa", "recomputation", "packed sequences", "policy", "offload", "losses", "generation")
SHARDED = ("FSDP1", "FSDP2", "FSDP2, recomputation", "expert parallel", "collectives", "objects")
LONG_SINGLE = (
    "sdpa, float32",
    "eager attention",
    "AdamW, fused",
    "AdamW, one by one",
    "recomputation, reentrant",
    "LoRA",
    "padding",
    "critic",
    "fused attention, BSH",
    "fused attention, SBH",
    "fused attention, BSND",
    "fused attention, BNSD",
    "experts",
    "grouped experts",
    "activations on the host",
    "gradient accumulation",
    "autocast",
    "sampling",
    "images",
)
LONG_SHARDED = (
    "FSDP1, recomputation",
    "FSDP1, original parameters",
    "FSDP1, offload",
    "FSDP2, kept whole",
    "FSDP2, offload",
    "FSDP2, loaded by rank 0",
    "FSDP2, LoRA",
    "DDP",
    "tensor parallel",
    "tensor and sequence parallel",
    "pipeline",
    "Ulysses",
)


MEGATRON = (
    "data parallel",
    "distributed optimizer",
    "tensor parallel",
    "tensor and sequence parallel",
    "tensor parallel, recomputation",
    "pipeline",
    "pipeline, recomputation",
    "experts",
    "expert parallel",
    "expert parallel, distributed optimizer",
    "expert and tensor parallel",
)
BESIDE = ("mindspeed-f2b0977e", "megatron-0.12.1")


def _measured(program: str, cases: Sequence[str], folder: Path, ranks: int, **settings: str) -> list[Costs]:
    """What each case costs each rank."""
    module = f"tests.phantom.{program}"
    processes = [
        subprocess.Popen(
            [os.environ.get("VIRTUAL_ASCEND_PHANTOM_PYTHON", sys.executable), "-m", module, *cases],
            env=environment(
                PYTHONPATH=pythonpath_and(PROJECT),
                RANK=str(rank),
                WORLD_SIZE=str(ranks),
                INIT=f"file://{folder}/meet",
                **settings,
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    found = []
    try:
        for process in processes:
            out, error = process.communicate(timeout=280)
            assert process.returncode == 0, error[-3000:]
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return found


def _both(program: str, cases: Sequence[str], make: pytest.TempPathFactory, ranks: int) -> dict[str, list[Costs]]:
    return {
        "real": _measured(program, cases, make.mktemp("real"), ranks),
        "phantom": _measured(program, cases, make.mktemp("phantom"), ranks, VIRTUAL_ASCEND_PHANTOM=PHANTOM),
    }


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Costs]]:
    return _both("single", SINGLE, tmp_path_factory, 1)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Costs]]:
    return _both("sharded", SHARDED, tmp_path_factory, 2)


@pytest.fixture(scope="module")
def long_single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Costs]]:
    return _both("single", LONG_SINGLE, tmp_path_factory, 1)


@pytest.fixture(scope="module")
def long_sharded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Costs]]:
    return _both("sharded", LONG_SHARDED, tmp_path_factory, 2)


@pytest.fixture(scope="module")
def megatron(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Costs]]:
    folder = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"))
    if not all((folder / name).is_dir() for name in BESIDE):
        pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {', '.join(name + '/' for name in BESIDE)}")
    with pytest.MonkeyPatch.context() as patch:
        paths = [os.environ.get("PYTHONPATH", ""), *(str(folder / name) for name in BESIDE)]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        return _both("megatron", MEGATRON, tmp_path_factory, 2)


def _compare(costs: Mapping[str, list[Costs]], case: str) -> None:
    real, phantom = ([rank[case] for rank in costs[kind]] for kind in ("real", "phantom"))
    assert not [cost for cost in real if isinstance(cost, str)]
    assert phantom == real


@pytest.mark.parametrize("case", SINGLE)
def test_one_npu_pays_the_same(single: dict[str, list[Costs]], case: str) -> None:
    _compare(single, case)


@pytest.mark.parametrize("case", SHARDED)
def test_two_npus_pay_the_same(sharded: dict[str, list[Costs]], case: str) -> None:
    _compare(sharded, case)


@pytest.mark.nightly
@pytest.mark.parametrize("case", LONG_SINGLE)
def test_one_npu_pays_the_same_in_all_cases(long_single: dict[str, list[Costs]], case: str) -> None:
    _compare(long_single, case)


@pytest.mark.nightly
@pytest.mark.parametrize("case", LONG_SHARDED)
def test_two_npus_pay_the_same_in_all_cases(long_sharded: dict[str, list[Costs]], case: str) -> None:
    _compare(long_sharded, case)


@pytest.mark.nightly
@pytest.mark.parametrize("case", MEGATRON)
def test_two_npus_pay_the_same_on_megatron(megatron: dict[str, list[Costs]], case: str) -> None:
    _compare(megatron, case)
