"""A training costs an NPU the same to the byte whether its tensors are phantoms or not.

The cost is its peak, the rest at the end, and the bytes and blocks that were allocated in all. Cases of Megatron need
VERL_NPU_UPSTREAMS, a folder with `mindspeed-f2b0977e/` and `megatron-0.12.1/`. All run with another torch if
VIRTUAL_ASCEND_PHANTOM_PYTHON names a Python that has it, with transformers and peft.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
from virtual_ascend.testing import environment, pythonpath_and

Costs: TypeAlias = "dict[str, list[int] | str]"
PROJECT = Path(__file__).parents[2]
PHANTOM = "0.03125"  # MiB: most tensors of these small models are larger

BESIDE = ("mindspeed-f2b0977e", "megatron-0.12.1")


def _measured(program: str, cases: Sequence[str], folder: Path, ranks: int, **settings: str) -> list[Costs]:
    """Return the cost of each case on each rank."""
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
            out, error = process.communicate(timeout=900)
            assert process.returncode == 0, error[-3000:]
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return found


@pytest.fixture
def importable(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Megatron and MindSpeed importable for the cases of Megatron."""
    if program == "megatron":
        folder = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"))
        if not all((folder / name).is_dir() for name in BESIDE):
            pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {', '.join(name + '/' for name in BESIDE)}")
        paths = [os.environ.get("PYTHONPATH", ""), *(str(folder / name) for name in BESIDE)]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


_DEVICE = ("packages/virtual-ascend/virtual_ascend/device/csrc", "packages/virtual-ascend/virtual_ascend/hccl")


ON_HOST = {
    "single": ("optimizer on the host",),
    "sharded": ("FSDP1, offload", "FSDP2, offload"),
}


def _check(program: str, ranks: int, cases: Sequence[str], make: pytest.TempPathFactory, **settings: str) -> None:
    real = _measured(program, cases, make.mktemp("real"), ranks, **settings)
    phantom = _measured(program, cases, make.mktemp("phantom"), ranks, VIRTUAL_ASCEND_PHANTOM=PHANTOM, **settings)
    assert not [(case, cost) for rank in real for case, cost in rank.items() if isinstance(cost, str)]
    assert phantom == real


@pytest.mark.nightly(*_DEVICE)
@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(("program", "ranks"), [("single", 1), ("sharded", 2), ("megatron", 2)])
def test_phantoms_cost_the_same(program: str, ranks: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    _check(program, ranks, (), tmp_path_factory)


@pytest.mark.nightly(*_DEVICE)
@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(("program", "ranks"), [("single", 1), ("sharded", 2)])
def test_hosts_pay_the_same(program: str, ranks: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    _check(program, ranks, ON_HOST[program], tmp_path_factory, LEAST=str(int(float(PHANTOM) * (1 << 20))))
