from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from verl_npu.errors import RolloutError

if TYPE_CHECKING:
    from verl_npu_workbench.simulation.rollout.engine import Engine

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]


def generate(engine: Engine) -> Any:
    from verl_npu_workbench.simulation.rollout.prompts import Prompt

    prompts = [Prompt([3, 4]), Prompt([5, 6, 7])]
    return engine.generate(prompts, 4, None, {"do_sample": False}, with_log_probs=True)


def hand_over(engine: Engine, weights: dict[str, Any]) -> None:
    engine.weights.take(weights.items())
    engine.weights.complete()


def test_it_answers_with_the_weights_that_it_was_given(engine: Engine, weights: dict[str, Any], config: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    hand_over(engine, weights)
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

    hand_over(engine, weights)
    given = generate(engine)
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(weights, strict=False)
    model.save_pretrained(tmp_path)
    engine.weights.release()
    engine.load(str(tmp_path))
    assert generate(engine).log_probs.tolist() == given.log_probs.tolist()


def test_without_weights_it_does_not_answer(engine: Engine) -> None:
    with pytest.raises(RolloutError, match="expected weights to arrive before the engine generates"):
        generate(engine)


def test_after_a_release_it_waits_for_new_ones(engine: Engine, weights: dict[str, Any]) -> None:
    hand_over(engine, weights)
    engine.weights.release()
    with pytest.raises(
        RolloutError, match="no weights have arrived since the engine started or last released its weights"
    ):
        generate(engine)


def test_half_a_hand_over_is_not_used(engine: Engine, weights: dict[str, Any]) -> None:
    hand_over(engine, weights)
    engine.weights.take(list(weights.items())[:2])
    with pytest.raises(
        RolloutError, match="no weights have arrived since the engine started or last released its weights"
    ):
        generate(engine)


def test_patches_of_the_trainers_model_do_not_reach_it(
    engine: Engine, weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.qwen2 import modeling_qwen2

    hand_over(engine, weights)
    before = generate(engine)
    # verl's fused kernels, whose forward returns no logits, and the patches of operators do this.
    monkeypatch.setattr(modeling_qwen2.Qwen2ForCausalLM, "forward", lambda *args, **kwargs: None)
    monkeypatch.setattr(modeling_qwen2.Qwen2RMSNorm, "forward", lambda self, hidden: hidden * 0)
    monkeypatch.setattr(modeling_qwen2, "apply_rotary_pos_emb", lambda q, k, *args, **kwargs: (q * 0, k * 0))
    assert generate(engine).log_probs.tolist() == before.log_probs.tolist()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"do_sample": True, "temperature": 1.0, "top_p": 0.9, "top_k": 0}),
        ({"temperature": 0.0}, {"do_sample": False}),
        ({"do_sample": False, "repetition_penalty": 1.1}, {"do_sample": False, "repetition_penalty": 1.1}),
        ({"top_k": 5, "min_p": 0.1}, {"do_sample": True, "temperature": 1.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1}),
    ],
)
def test_vllms_sampling_parameters_are_those_of_transformers(asked: dict[str, Any], expected: dict[str, Any]) -> None:
    from verl_npu_workbench.simulation.rollout.engine import sampling

    assert sampling(**({"do_sample": True, "temperature": 1.0, "top_p": 0.9, "top_k": -1} | asked)) == expected
