"""The fork server of ranks, one for all tests here, under each available torch_npu.

By default this is only the virtual NPU's own torch_npu. VERL_NPU_TORCH_NPU names Pythons of environments with wheels,
as `scripts/smoke.sh --torch-npu 2.8.0` makes them, separated by colons: each test of ranks then runs under every one
of them too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from testing.ranks import Ranks, Run

PROJECT = Path(__file__).parents[3]
PYTHONS = [path for path in os.environ.get("VERL_NPU_TORCH_NPU", "").split(os.pathsep) if path]


@pytest.fixture(scope="session", params=[None, *PYTHONS], ids=lambda python: python or "ours")
def fork_server(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    if request.param is None:
        made = Ranks(VIRTUAL_ASCEND_TORCH_NPU="ours")
    else:
        paths = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
        made = Ranks(python=request.param, PYTHONPATH=paths, VIRTUAL_ASCEND_TORCH_NPU="real")
    yield made
    made.close()


@pytest.fixture
def run_ranks(fork_server: Ranks) -> Run:
    """Return a function that runs a program on each rank of a group, with two virtual NPUs."""
    return fork_server.run
