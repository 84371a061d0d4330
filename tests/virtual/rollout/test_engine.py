"""The rollout engine of the virtual Ascend: weights come whole and fit, or nothing is generated with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from verl_npu.errors import RolloutError

from .processes import environment

if TYPE_CHECKING:
    from verl_npu.virtual.rollout.engine import Engine

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]


@pytest.fixture(scope="module")
def config() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.Qwen2Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )


@pytest.fixture
def weights(config: Any) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    named = AutoModelForCausalLM.from_config(config).named_parameters()
    return {name: value.detach() for name, value in named}


@pytest.fixture
def engine(npu: ModuleType, config: Any) -> Engine:
    from verl_npu.virtual.rollout.engine import Engine

    return Engine(config, "float32", pad_token_id=0, announce=False)


def generate(engine: Engine) -> Any:
    import torch

    ids = torch.tensor([[0, 3, 4], [5, 6, 7]], device="npu")
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]], device="npu")
    return engine.generate(ids, mask, 4, None, {"do_sample": False}, with_log_probs=True)


def test_it_answers_with_the_weights_that_it_was_given(engine: Engine, weights: dict[str, Any], config: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    engine.update(weights.items())
    answers = generate(engine)
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(weights, strict=False)
    tokens = torch.tensor([[5, 6, 7]])
    for step in range(4):
        log_probs = model(input_ids=tokens).logits[:, -1].log_softmax(-1)
        assert answers.responses[1, step].item() == log_probs.argmax().item()
        assert answers.log_probs[1, step].item() == pytest.approx(log_probs.max().item(), abs=1e-5)
        tokens = torch.cat([tokens, log_probs.argmax(-1, keepdim=True)], dim=1)


def test_a_checkpoint_gives_it_the_same_weights(engine: Engine, config: Any, weights: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    engine.update(weights.items())
    given = generate(engine)
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(weights, strict=False)
    model.save_pretrained(tmp_path)
    engine.release()
    engine.load(str(tmp_path))
    assert generate(engine).log_probs.tolist() == given.log_probs.tolist()


def test_without_weights_it_does_not_answer(engine: Engine) -> None:
    with pytest.raises(RolloutError, match="expected weights before it is asked to generate"):
        generate(engine)


def test_after_a_release_it_waits_for_new_ones(engine: Engine, weights: dict[str, Any]) -> None:
    engine.update(weights.items())
    engine.release()
    with pytest.raises(RolloutError, match="none were handed over since"):
        generate(engine)


def test_half_a_hand_over_is_not_used(engine: Engine, weights: dict[str, Any]) -> None:
    engine.update(weights.items())
    engine.take(list(weights.items())[:2])
    with pytest.raises(RolloutError, match="none were handed over since"):
        generate(engine)


def test_a_missing_weight_is_named(engine: Engine, weights: dict[str, Any]) -> None:
    del weights["model.norm.weight"]
    with pytest.raises(RolloutError, match=r"1 never arrived, the first of them model\.norm\.weight"):
        engine.update(weights.items())


@pytest.mark.parametrize(
    ("name", "message"),
    [("stranger", "the weight stranger, which it has not"), ("model.norm.weight", r"shape \(16,\)")],
)
def test_a_weight_that_does_not_fit_is_named(engine: Engine, weights: dict[str, Any], name: str, message: str) -> None:
    import torch

    with pytest.raises(RolloutError, match=message):
        engine.update({**weights, name: torch.zeros(3)}.items())


SERVER = """
import asyncio, json, os, sys, torch
from transformers import AutoModelForCausalLM
from verl.workers.config import HFModelConfig, RolloutConfig
from verl_npu.virtual.rollout.server import VirtualServer, _buckets

folder = sys.argv[1]
config = RolloutConfig(name="virtual", mode="async", response_length=4, dtype="float32", tensor_model_parallel_size=1)
server = VirtualServer(config, HFModelConfig(path=folder), "1", [])
weights = AutoModelForCausalLM.from_pretrained(folder).named_parameters()
batches = []
inner = server._generate
server._generate = lambda batch: (batches.append(len(batch)), inner(batch))[1]

async def main():
    greedy = {"temperature": 0.0, "logprobs": 1}
    def ask(*prompt, **others): return server.generate(list(prompt), greedy, "r", **others)
    out = {}
    early = await asyncio.gather(ask(5), ask(6), return_exceptions=True)
    out["early"] = [str(error) for error in early]
    for bucket in _buckets(weights): await server.take_weights(bucket)
    await server.complete_weights(7)
    batches.clear()
    answers = await asyncio.gather(ask(5, 6, 7), ask(8), ask(5, 6, 7))
    out["batches"] = list(batches)
    out["answers"] = [(a.token_ids, len(a.log_probs), a.extra_fields["global_steps"]) for a in answers]
    alone = await ask(8)
    out["alone"] = alone.token_ids
    try: await ask(5, image_data=["x"])
    except RuntimeError as error: out["image"] = str(error)
    out["device"] = [os.environ["ASCEND_RT_VISIBLE_DEVICES"], torch.npu.device_count()]
    print(json.dumps(out))

asyncio.run(main())
"""


def test_a_server_answers_what_comes_together_as_one_batch(importable: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = tmp_path / "model"
    script = "import sys; from pathlib import Path; from harness.model import generate; generate(Path(sys.argv[1]), 0)"
    project = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(importable("v0.7.1")), str(project / "scripts"), str(project)])
    env = environment(PYTHONPATH=path, ASCEND_RT_VISIBLE_DEVICES="")
    subprocess.run([sys.executable, "-c", script, str(folder)], env=env, check=True, capture_output=True)
    result = subprocess.run(
        [sys.executable, "-c", SERVER, str(folder)], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    out = json.loads(result.stdout.splitlines()[-1])
    assert all("none were handed over since" in error for error in out["early"])
    assert len(out["early"]) == 2
    assert out["batches"] == [3]
    first, second, third = out["answers"]
    assert first == third
    assert second[0] == out["alone"]
    assert all(length == len(tokens) and steps == 7 for tokens, length, steps in out["answers"])
    assert "expected tokens only, found image_data" in out["image"]
    assert out["device"] == ["1", 1]
