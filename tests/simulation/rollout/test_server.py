"""The engine behind verl's server contract."""

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

SERVER = """
import asyncio, json, os, sys, torch
from transformers import AutoModelForCausalLM
from verl.workers.config import HFModelConfig, RolloutConfig
from verl_npu.simulation.rollout.layout import Place
from verl_npu.simulation.rollout.server import VirtualServer
from verl_npu.simulation.rollout.worker import buckets

folder = sys.argv[1]
config = RolloutConfig(name="virtual", mode="async", response_length=4, dtype="float32", tensor_model_parallel_size=1)
def start(shares): return VirtualServer(config, HFModelConfig(path=folder), "1", [], Place(0, 0, 1), shares)
server = start(True)
weights = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
batches = []
inner = server._generate
server._generate = lambda batch: (batches.append(len(batch)), inner(batch))[1]
name = "model.layers.0.self_attn.q_proj"
width, height = weights[name + ".weight"].shape
adapter = {f"base_model.model.{name}.lora_A.weight": torch.ones(1, height),
           f"base_model.model.{name}.lora_B.weight": torch.ones(width, 1)}

async def one_by_one():
    for pair in weights.items(): yield pair

async def main():
    greedy = {"temperature": 0.0, "logprobs": 1}
    def ask(*prompt, **others): return server.generate(list(prompt), greedy, "r", **others)
    out = {}
    early = await asyncio.gather(ask(5), ask(6), return_exceptions=True)
    out["early"] = [str(error) for error in early]
    async for bucket in buckets(one_by_one()): await server.take_weights(bucket)
    await server.complete_weights(7)
    batches.clear()
    answers = await asyncio.gather(ask(5, 6, 7), ask(8), ask(5, 6, 7))
    out["batches"] = list(batches)
    out["answers"] = [(a.token_ids, len(a.log_probs), a.extra_fields["global_steps"]) for a in answers]
    alone = await ask(8)
    out["alone"] = alone.token_ids
    for given in ({"image_data": ["x"]}, {"audio_data": ["x"]}):
        try: await ask(5, **given)
        except RuntimeError as error: out[next(iter(given))] = str(error)
    out["device"] = [os.environ["ASCEND_RT_VISIBLE_DEVICES"], torch.npu.device_count()]
    await server.sleep()
    async for bucket in buckets(adapter.items()): await server.take_weights(bucket, {"r": 1, "lora_alpha": 1})
    await server.complete_weights(8, {"r": 1, "lora_alpha": 1})
    adapted = await ask(8)
    out["adapted"] = [adapted.log_probs != alone.log_probs, adapted.extra_fields["global_steps"]]
    out["stands alone"] = (await start(False).generate([8], greedy, "r")).log_probs == alone.log_probs
    print(json.dumps(out))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def out(importable: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("ray")
    folder = tmp_path_factory.mktemp("served") / "model"
    script = "import sys; from pathlib import Path; from harness.model import generate; generate(Path(sys.argv[1]), 0)"
    path = os.pathsep.join([str(importable("v0.7.1")), str(PROJECT / "scripts"), str(PROJECT)])
    env = environment(PYTHONPATH=path, ASCEND_RT_VISIBLE_DEVICES="")
    subprocess.run([sys.executable, "-c", script, str(folder)], env=env, check=True, capture_output=True)
    result = subprocess.run(
        [sys.executable, "-c", SERVER, str(folder)], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    read: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return read


def test_a_server_answers_what_comes_together_as_one_batch(out: dict[str, Any]) -> None:
    assert out["batches"] == [3]
    first, second, third = out["answers"]
    assert first == third
    assert second[0] == out["alone"]
    assert all(length == len(tokens) and steps == 7 for tokens, length, steps in out["answers"])


def test_whoever_asks_before_the_weights_are_there_is_told(out: dict[str, Any]) -> None:
    assert all("none were handed over since" in error for error in out["early"])
    assert len(out["early"]) == 2


def test_images_for_a_model_of_text_and_sound_are_refused(out: dict[str, Any]) -> None:
    assert "found images, for which this model's processor has no token" in out["image_data"]
    assert "expected text, images and videos, found audio_data" in out["audio_data"]


def test_a_server_uses_its_workers_npu(out: dict[str, Any]) -> None:
    assert out["device"] == ["1", 1]


def test_an_adapter_alone_is_enough_after_a_sleep(out: dict[str, Any]) -> None:
    assert out["adapted"] == [True, 8]


def test_a_server_without_a_trainer_starts_with_the_checkpoint(out: dict[str, Any]) -> None:
    assert out["stands alone"]
