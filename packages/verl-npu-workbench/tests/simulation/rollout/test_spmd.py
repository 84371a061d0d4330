"""The engine in vLLM's place, with the workers and sharding managers of 796871d7."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .programs import answer_of

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

WORKER = """
import json, os, sys, torch
from types import SimpleNamespace
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl import DataProto
from verl.workers import fsdp_workers

folder = sys.argv[1]
torch.distributed.init_process_group("hccl", init_method=f"file://{sys.argv[2]}", rank=0, world_size=1)
config = {"model": {"path": folder}, "rollout": {
    "name": "virtual", "mode": "sync", "tensor_model_parallel_size": 1, "dtype": "float32",
    "load_format": "dummy_dtensor", "free_cache_engine": True, "response_length": 4, "calculate_log_probs": True,
    "ignore_eos": True, "do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": -1}}
config = OmegaConf.create(config)
model = AutoModelForCausalLM.from_pretrained(folder).to("npu")
worker = SimpleNamespace(
    world_size=1, rank=0, config=config, actor_module_fsdp=model, tokenizer=AutoTokenizer.from_pretrained(folder),
    actor_model_config=model.config, _is_lora=False, _is_offload_param=False, processor=None)
build = lambda: fsdp_workers.ActorRolloutRefWorker._build_rollout(worker)
rollout, manager = build()
ids = torch.tensor([[0, 5, 6], [7, 8, 9]], device="npu")
mask = torch.tensor([[0, 1, 1], [1, 1, 1]], device="npu")
prompts = DataProto.from_dict({"input_ids": ids, "attention_mask": mask, "position_ids": mask.cumsum(-1) - 1},
                              meta_info={"eos_token_id": 1})
out = {"name": config.rollout.name}
with manager:
    answered = manager.postprocess_data(rollout.generate_sequences(prompts=manager.preprocess_data(prompts)))
tokens = answered.batch["input_ids"][1:]
logits = model(tokens).logits[0, 2:-1]
out["greedy"] = logits.argmax(-1).tolist() == tokens[0, 3:].tolist()
out["shapes"] = {key: list(value.shape) for key, value in answered.batch.items()}
try: rollout.generate_sequences(prompts=prompts)
except RuntimeError as error: out["asleep"] = str(error)
config.rollout.mode = "async"
try: build()
except RuntimeError as error: out["async"] = str(error)
out["name afterwards"] = config.rollout.name
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def out(importable: Callable[[str], Path], checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("ray")
    meet = tmp_path_factory.mktemp("spmd") / "meet"
    return answer_of(WORKER, importable("796871d7"), str(checkpoint), str(meet))


def test_the_trainers_weights_answer_by_verls_own_sharding_manager(out: Any) -> None:
    assert out["greedy"]
    assert out["shapes"] == {
        "prompts": [2, 3],
        "responses": [2, 4],
        "input_ids": [2, 7],
        "attention_mask": [2, 7],
        "position_ids": [2, 7],
        "rollout_log_probs": [2, 4],
    }


def test_the_settings_say_virtual_again(out: Any) -> None:
    assert out["name"] == out["name afterwards"] == "virtual"


def test_after_the_sharding_manager_it_waits_for_new_weights(out: Any) -> None:
    assert "no weights have arrived since the engine started or last released its weights" in out["asleep"]


def test_servers_are_refused(out: Any) -> None:
    assert "expected sync; found async" in out["async"]
