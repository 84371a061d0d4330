"""The worker's side of the server contract: each rank checks what it is handed, and only the first hands it on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.testing import environment

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

PROJECT = Path(__file__).resolve().parents[3]

WORKER = """
import asyncio, json, os, sys, torch
from transformers import AutoModelForCausalLM
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.base import get_rollout_class

config = RolloutConfig(
    name="virtual", mode="async", dtype="float32", tensor_model_parallel_size=2, load_format="dummy")
def start(rank, **others):
    os.environ["RANK"] = str(rank)
    made = get_rollout_class("virtual", "async")(config, HFModelConfig(path=sys.argv[1]), None, **others)
    return made, [made.replica_rank, made.is_leader_rank]

weights = dict(AutoModelForCausalLM.from_pretrained(sys.argv[1]).named_parameters())
async def one_by_one():
    for pair in weights.items(): yield pair

async def main():
    out = {"places": [start(rank)[1] for rank in range(3)], "given": start(1, replica_rank=4)[1]}
    follower, _ = start(3)
    await follower.update_weights(weights.items(), global_steps=1)
    await follower.update_weights(one_by_one(), global_steps=2, wire_format="named_tensors")
    try: await follower.update_weights(list(weights.items())[1:])
    except RuntimeError as error: out["missing"] = str(error)
    print(json.dumps(out))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def out(importable: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("ray")
    folder = tmp_path_factory.mktemp("worker") / "model"
    script = "import sys; from pathlib import Path; from harness.model import generate; generate(Path(sys.argv[1]), 0)"
    path = os.pathsep.join([str(importable("v0.7.1")), str(PROJECT / "scripts"), str(PROJECT)])
    env = environment(PYTHONPATH=path)
    subprocess.run([sys.executable, "-c", script, str(folder)], env=env, check=True, capture_output=True)
    result = subprocess.run(
        [sys.executable, "-c", WORKER, str(folder)], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    read: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return read


def test_the_first_rank_of_each_replica_leads(out: dict[str, Any]) -> None:
    assert out["places"] == [[0, True], [0, False], [1, True]]


def test_a_replica_that_stands_alone_is_told_its_number(out: dict[str, Any]) -> None:
    assert out["given"] == [4, False]


def test_another_rank_checks_what_it_is_handed(out: dict[str, Any]) -> None:
    assert "1 never arrived" in out["missing"]
