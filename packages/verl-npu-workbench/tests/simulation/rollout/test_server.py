"""Both sides of verl's server contract: the server, and the workers that hand weights over to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .programs import answer_of

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

PROGRAM = """
import asyncio, json, os, sys, torch
from transformers import AutoModelForCausalLM
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.base import get_rollout_class
from verl_npu_workbench.simulation.rollout.layout import Place
from verl_npu_workbench.simulation.rollout.server import VirtualServer
from verl_npu_workbench.simulation.rollout.worker import buckets

folder = sys.argv[1]
config = RolloutConfig(name="virtual", mode="async", response_length=4, dtype="float32", tensor_model_parallel_size=1)
def start(shares): return VirtualServer(config, HFModelConfig(path=folder), "1", [], Place(0, 0, 1), shares)
def worker(rank, **others):
    os.environ["RANK"] = str(rank)
    two = RolloutConfig(
        name="virtual", mode="async", dtype="float32", tensor_model_parallel_size=2, load_format="dummy")
    made = get_rollout_class("virtual", "async")(two, HFModelConfig(path=folder), None, **others)
    return made, [made.replica_rank, made.is_leader_rank]
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
    long = asyncio.create_task(server.generate([8], {"temperature": 0.0, "logprobs": 1, "max_tokens": 2000}, "r"))
    while not server._turn.locked(): await asyncio.sleep(0)
    await asyncio.sleep(0.2)
    await server.abort_all_requests()
    cut = await long
    out["cut"] = [cut.stop_reason, 0 < len(cut.token_ids) < 2000, len(cut.log_probs) == len(cut.token_ids)]
    held = asyncio.create_task(ask(8))
    await asyncio.sleep(0.1)
    out["held"] = held.done()
    await server.abort_all_requests(reject_request=True)
    rejected = await ask(8)
    out["rejected"] = [rejected.stop_reason, rejected.token_ids, held.done()]
    await server.resume_generation()
    out["resumed"] = (await held).token_ids
    await server.sleep()
    async for bucket in buckets(adapter.items()): await server.take_weights(bucket, {"r": 1, "lora_alpha": 1})
    await server.complete_weights(8, {"r": 1, "lora_alpha": 1})
    adapted = await ask(8)
    out["adapted"] = [adapted.log_probs != alone.log_probs, adapted.extra_fields["global_steps"]]
    out["places"] = [worker(rank)[1] for rank in range(3)]
    out["given"] = worker(1, replica_rank=4)[1]
    follower, _ = worker(3)
    await follower.update_weights(weights.items(), global_steps=1)
    await follower.update_weights(one_by_one(), global_steps=2, wire_format="named_tensors")
    try: await follower.update_weights(list(weights.items())[1:])
    except RuntimeError as error: out["missing"] = str(error)
    out["stands alone"] = (await start(False).generate([8], greedy, "r")).log_probs == alone.log_probs
    print(json.dumps(out))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def out(importable: Callable[[str], Path], checkpoint: Path) -> Any:
    pytest.importorskip("ray")
    return answer_of(PROGRAM, importable("v0.7.1"), str(checkpoint), ASCEND_RT_VISIBLE_DEVICES="")


def test_a_server_answers_what_comes_together_as_one_batch(out: Any) -> None:
    assert out["batches"] == [3]
    first, second, third = out["answers"]
    assert first == third
    assert second[0] == out["alone"]
    assert all(length == len(tokens) and steps == 7 for tokens, length, steps in out["answers"])


def test_whoever_asks_before_the_weights_are_there_is_told(out: Any) -> None:
    assert all(
        "no weights have arrived since the engine started or last released its weights" in error
        for error in out["early"]
    )
    assert len(out["early"]) == 2


def test_images_for_a_model_of_text_and_sound_are_refused(out: Any) -> None:
    assert "the prompt has images, but this model's processor has no token for images" in out["image_data"]
    assert "expected text, images, and videos; found audio_data" in out["audio_data"]


def test_a_server_uses_its_workers_npu(out: Any) -> None:
    assert out["device"] == ["1", 1]


def test_an_abort_cuts_answers_and_gives_what_they_have(out: Any) -> None:
    assert out["cut"] == ["aborted", True, True]


def test_requests_after_an_abort_wait_for_the_resume_or_are_rejected(out: Any) -> None:
    assert out["held"] is False
    assert out["rejected"] == ["aborted", [], False]
    assert out["resumed"] == out["alone"]


def test_an_adapter_alone_is_enough_after_a_sleep(out: Any) -> None:
    assert out["adapted"] == [True, 8]


def test_a_server_without_a_trainer_starts_with_the_checkpoint(out: Any) -> None:
    assert out["stands alone"]


def test_the_first_rank_of_each_replica_leads(out: Any) -> None:
    assert out["places"] == [[0, True], [0, False], [1, True]]


def test_a_replica_that_stands_alone_is_told_its_number(out: Any) -> None:
    assert out["given"] == [4, False]


def test_another_rank_checks_what_it_is_handed(out: Any) -> None:
    assert "found 1 missing" in out["missing"]
