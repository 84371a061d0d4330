"""Numbers, verdicts, and reports of a comparison."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import modeling_utils
from verl_npu_workbench.jobs.settings import Settings
from verl_npu_workbench.layers.causes import Reason, Sampling
from verl_npu_workbench.layers.comparing import Comparison, Side, compare, content, numbers
from verl_npu_workbench.layers.computing import generated
from verl_npu_workbench.layers.judging import Verdict
from verl_npu_workbench.layers.megatron import padded
from verl_npu_workbench.layers.recording import Batch, Recorder, Recording, record
from verl_npu_workbench.layers.report import lines_of
from verl_npu_workbench.layers.running import _trainer, compare_layers

from verl_npu.errors import RolloutError

from .faults import OUTPUTS, frequencies
from .models import BATCH, WITH_PICTURES, answer, make, only, replaced

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]


def test_a_cached_prefix_is_the_one_of_the_first_request_that_has_it() -> None:
    batch, recorder = Batch(((1, 2, 3, 4), (1, 2, 5, 6)), (3, 3)), Recorder()
    recorder.begin([(0, 0), (0, 1), (0, 2), (1, 2)])
    recorder.add("norm:out", torch.tensor([[0.0], [1.0], [2.0], [5.0]]))
    assert recorder.recording(batch, torch.float32).values["norm:out"].flatten().tolist() == [0, 1, 2, 0, 1, 5]


@pytest.mark.parametrize("stale", [False, True])
def test_outputs_with_graphs_are_judged_beside_those_without(stale: bool) -> None:
    model = make("qwen2")
    other = copy.deepcopy(model)
    if stale:
        other.model.layers[0].mlp.up_proj.weight += 0.02
    tokens = tuple(each[:-1] for each in BATCH.tokens)
    graphs = only(answer(other, Batch(tokens, BATCH.prompts)), OUTPUTS)
    made = compare(model, record(model, BATCH), answer(model), graphs=graphs)
    assert (made.first is not None) == stale
    if made.first:
        assert made.cause is not None
        assert (made.first.operator.name, made.side) == ("layers", Side.GRAPHS)
        assert made.cause.reason is Reason.GRAPHS
        assert made.numbers is not None
        assert made.numbers.k3 < 1e-6


def test_numbers_are_those_of_two_probabilities() -> None:
    trainer, engine = torch.tensor([0.5, 0.25]).log(), torch.tensor([0.25, 0.25]).log()
    found = numbers(trainer, engine)
    assert found.k1 == pytest.approx(-math.log(2) / 2)
    assert found.k3 == pytest.approx((1 - math.log(2)) / 2)
    assert (found.mean_difference, found.max_difference) == pytest.approx((0.125, 0.25))
    assert (found.tokens, found.beyond) == (2, 0.5)
    assert found.effective == pytest.approx(9 / 10)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_moe", *WITH_PICTURES])
def test_an_engine_with_a_cache_is_as_expected(kind: str) -> None:
    model = make(kind)
    model.config._attn_implementation = "sdpa"
    engine = generated(copy.deepcopy(model), PROMPTS, 4, 0.7)
    assert [len(each) for each in engine.batch.tokens] == [7, 9]
    made = compare(model, record(model, engine.batch, 0.7), engine, Sampling(0.7))
    assert made.first is None
    assert len(made.sides[Side.ENGINE].operators) == len(made.sides[Side.TRAINER].operators)
    assert made.numbers is not None
    assert abs(made.numbers.k1) < 1e-6


def test_values_that_are_padded_for_flash_attention_are_as_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers pads the values of latent attention to the size of keys, and cuts the outputs."""
    functions = modeling_utils.ALL_ATTENTION_FUNCTIONS
    monkeypatch.setitem(functions, "flash_attention_2", functions["sdpa"])
    model = make("deepseek_v3")
    other = copy.deepcopy(model)
    other.config._attn_implementation = "flash_attention_2"
    made = compare(model, record(other, BATCH), answer(model))
    assert made.first is None
    assert len(made.sides[Side.TRAINER].operators) == len(made.sides[Side.ENGINE].operators)


def test_a_stale_weight_of_linear_attention_is_found() -> None:
    model = make("qwen3_5")
    other = copy.deepcopy(model)
    other.model.language_model.layers[0].linear_attn.A_log += 0.3
    made = compare(model, record(model, BATCH), record(other, BATCH))
    assert made.first is not None
    assert made.first.operator.name == "layers.0.linear_attn.delta_rule"
    assert made.cause is not None
    assert made.cause.said.startswith("layers.0.linear_attn.A_log: ")


def test_the_epsilon_of_a_norm_that_adds_1_to_its_weight_is_found() -> None:
    model = make("qwen3_5")
    other = copy.deepcopy(model)
    other.model.language_model.layers[0].input_layernorm.eps = 1e-4
    made = compare(model, record(model, BATCH), record(other, BATCH))
    assert made.cause is not None
    assert made.cause.said == "0.0001 instead of 1e-06"


def noisy(right: Recording, name: str, noise: float) -> Recording:
    """Return a recording in which one value has other digits."""
    torch.manual_seed(3)
    value = right.values[name]
    wide = value.double() * (1 + noise * torch.randn(value.shape, dtype=torch.float64))
    return Recording(right.batch, right.dtype, {**right.values, name: wide.to(value.dtype)}, right.held)


def test_no_narrower_dtype_is_the_cause_in_bfloat16() -> None:
    """Nearly all of its numbers are also numbers of float16."""
    model = make("qwen2", torch.bfloat16)
    right = record(model, BATCH)
    made = compare(model, right, noisy(right, "layers.0.mlp.down_proj:in", 0.03))
    assert made.first is not None
    assert (made.first.operator.name, made.first.verdict) == ("layers.0.mlp.act_fn", Verdict.LARGER)
    assert made.cause is None


@pytest.mark.parametrize(
    ("kind", "value", "noise"),
    [
        ("qwen2", "layers.0.self_attn.o_proj:out", math.nan),
        ("qwen3_moe", "layers.0.mlp:out", 1.0),
        *((kind, "layers.1.self_attn.query", 1.0) for kind in WITH_PICTURES),
    ],
)
def test_an_error_that_nothing_explains_has_no_cause(kind: str, value: str, noise: float) -> None:
    model = make(kind, **({"num_experts": 2} if kind == "qwen3_moe" else {}))
    right = record(model, BATCH)
    made = compare(model, right, noisy(right, value, noise))
    assert made.first is not None
    assert value in made.first.operator.made
    assert made.cause is None


def test_a_whole_linear_attention_that_nothing_explains_has_no_cause() -> None:
    """It has no softmax whose scale could be another one."""
    model, name = make("qwen3_5"), "layers.0.linear_attn"
    right = record(model, BATCH)
    engine = noisy(right, f"{name}:out", 1.0)
    made = compare(model, right, only(engine, [each for each in engine.values if not each.startswith(f"{name}.")]))
    assert (made.first and made.first.operator.name, made.cause) == (name, None)


def test_the_rotary_base_of_heads_that_turn_in_part_is_found() -> None:
    model = make("qwen3_5")
    other = copy.deepcopy(model)
    other.model.language_model.rotary_emb.inv_freq = frequencies(1e6, 16)
    made = compare(model, record(model, BATCH), record(other, BATCH))
    assert made.cause is not None
    assert made.cause.said == "1e+06 instead of 10000"


def test_the_rotary_layout_of_heads_that_turn_in_part_is_found() -> None:
    model = make("qwen3_5")

    def of_neighbours(
        original: object, query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> list[torch.Tensor]:
        turns = torch.complex(cos, sin)[:, None, :, : cos.shape[-1] // 2]
        found = []
        for heads in (query.clone(), key.clone()):
            turned = torch.view_as_complex(heads[..., : cos.shape[-1]].unflatten(-1, (-1, 2)).contiguous()) * turns
            heads[..., : cos.shape[-1]] = torch.view_as_real(turned).flatten(-2)
            found.append(heads)
        return found

    with replaced(model, "apply_rotary_pos_emb", of_neighbours):
        other = record(model, BATCH)
    made = compare(model, record(model, BATCH), other)
    assert made.cause is not None
    assert made.cause.reason is Reason.LAYOUT


def test_weights_that_see_pictures_explain_no_text() -> None:
    model = make("qwen2_5_vl")
    other = copy.deepcopy(model)
    for path in ("model.language_model.layers.0.mlp.up_proj.weight", "model.visual.blocks.0.norm1.weight"):
        weight = other.get_parameter(path)
        weight += 0.02 * torch.randn(weight.shape)
    made = compare(model, record(other, BATCH), record(model, BATCH))
    assert (made.side, made.cause and made.cause.said) == (
        Side.TRAINER,
        "layers.0.mlp.up_proj.weight: this side holds other values",
    )


@pytest.mark.parametrize(("count", "said"), [(2, "1 other weight differs"), (3, "2 other weights differ")])
def test_further_weights_that_differ_are_counted(count: int, said: str) -> None:
    model = make("qwen2")
    other = copy.deepcopy(model)
    for part in ("up_proj", "gate_proj", "down_proj")[:count]:
        other.get_parameter(f"model.layers.1.mlp.{part}.weight").mul_(1.1)
    made = compare(model, record(model, BATCH), record(other, BATCH))
    assert made.cause is not None
    assert made.cause.said.endswith(said)


def test_a_dropped_output_gate_is_found() -> None:
    model = make("qwen3_5")
    right, name = record(model, BATCH), "layers.1.self_attn"
    values = {**right.values, f"{name}.o_proj:in": right.values[f"{name}.attention"]}
    made = compare(model, right, Recording(BATCH, torch.float32, values))
    assert made.first is not None
    assert made.first.operator.name == f"{name}.gate"


def text(made: Comparison) -> Sequence[str]:
    return lines_of(content(made, []))


def with_a_near_tie(margin: float, name: str = "layers.0.mlp:out") -> Comparison:
    """Let the engine take the third expert for the second one, for a token whose scores are only so far apart."""
    model = make("qwen3_moe")
    trainer = record(model, BATCH)
    mlp = "layers.0.mlp"
    exact = trainer.values[f"{mlp}:in"][0].double()
    gate = model.model.layers[0].mlp.gate.weight
    second, third = (gate.double() @ exact).topk(3)[1][1:].tolist()
    apart = (gate[second].double() - gate[third].double()) @ exact - margin
    gate[third] += (apart * exact / exact.square().sum()).float()
    right = record(model, BATCH)
    other = copy.deepcopy(model)
    other.model.layers[0].mlp.gate.weight[third] += ((margin + 0.1) * exact / exact.square().sum()).float()
    flipped = record(other, BATCH)
    values = {**right.values, name: right.values[name].clone()}
    values[name][0] = flipped.values[name][0]
    engine = Recording(BATCH, torch.float32, values)
    return compare(model, right, engine if name.startswith(mlp) else only(engine, OUTPUTS))


def test_a_token_whose_experts_rounding_decides_flips() -> None:
    made = with_a_near_tie(1e-8)
    (flips,) = (each for each in made.sides[Side.ENGINE].operators if each.operator.name == "layers.0.mlp")
    assert flips.verdict is Verdict.FLIPS
    assert flips.flips is not None
    assert flips.flips["flipped"] == 1
    assert flips.flips["margin"] < 1e-6


def test_a_token_with_other_experts_for_no_reason_does_not() -> None:
    made = with_a_near_tie(0.3)
    assert made.first is not None
    assert made.first.operator.name == "layers.0.mlp"


@pytest.mark.parametrize(("margin", "bad"), [(1e-8, False), (0.3, True)])
def test_only_a_near_tie_explains_other_outputs_of_all_layers(margin: float, bad: bool) -> None:
    """With graphs, only these outputs are known."""
    made = with_a_near_tie(margin, "norm:out")
    (layers,) = (each for each in made.sides[Side.ENGINE].operators if each.operator.name == "layers")
    assert (layers.is_bad, layers.verdict is Verdict.FLIPS) == (bad, not bad)


def test_a_side_without_any_operator_is_refused() -> None:
    model = make("qwen2")
    with pytest.raises(RolloutError, match="the recording of the engine: expected inputs and outputs"):
        compare(model, record(model, BATCH), Recording(BATCH, torch.float32, {}))


def test_a_side_without_outputs_is_said() -> None:
    model = make("qwen2")
    right = record(model, BATCH)
    engine = only(right, [name for name in right.values if name != "logprobs"])
    made = content(compare(model, right, engine), ["x"])
    assert made["not_shown"] == ["x", "engine: logprobs was not recorded"]


def test_the_first_operator_is_that_of_the_side_that_differs_first() -> None:
    """The engine's list of operators is shorter."""
    model = make("qwen2")
    trainer = noisy(record(model, BATCH), "layers.0.mlp.up_proj:out", 1.0)
    engine = noisy(record(model, BATCH), "layers.1.mlp.up_proj:out", 1.0)
    engine = only(engine, [name for name in engine.values if not name.startswith("layers.0.")])
    made = compare(model, trainer, engine)
    assert (made.side, made.first and made.first.operator.name) == (Side.TRAINER, "layers.0.mlp.up_proj")


def test_the_report_begins_with_the_operator_and_its_cause() -> None:
    model = make("qwen2")
    other = copy.deepcopy(model)
    other.model.layers[1].self_attn.q_proj.bias = None
    made = compare(model, record(model, BATCH), answer(other))
    lines = text(made)
    assert lines[0].startswith("engine, layers.1.self_attn.q_proj: different.")
    assert lines[1] == "Cause: dropped bias: layers.1.self_attn.q_proj without its bias."
    assert lines[2].startswith("kl ")
    assert lines[-1] == "Operators compared: trainer: 33, engine: 33."


def test_a_model_of_another_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gemma"}')
    (tmp_path / "model.safetensors").touch()
    settings = Settings({"actor_rollout_ref.model.path": str(tmp_path)})
    with pytest.raises(RolloutError, match="expected one of qwen2, qwen3, qwen3_moe, deepseek_v3"):
        compare_layers(settings, tmp_path)


def test_a_batch_has_a_row_for_each_token_that_is_read() -> None:
    batch = Batch(((1, 2, 3, 4), (5, 6, 7)), (2, 1))
    assert batch.inputs().tolist() == [1, 2, 3, 5, 6]
    assert batch.answers() == [(0, 1), (0, 2), (1, 0), (1, 1)]
    assert batch.targets().tolist() == [3, 4, 6, 7]
    assert batch.answer_rows().tolist() == [1, 2, 3, 4]


def test_megatron_pads_each_sequence_to_the_tensor_parallel_size() -> None:
    assert padded({0: 3, 2: 2}, 2, packed=True) == [(0, 0), (0, 1), (0, 2), None, (2, 0), (2, 1)]


def test_without_packing_the_sequences_take_turns() -> None:
    assert padded({0: 3, 2: 1}, 1, packed=False) == [(0, 0), (2, 0), (0, 1), None, (0, 2), None]


def test_a_megatron_trainer_gets_the_scripts_sizes_and_overrides_as_far_as_there_are_npus() -> None:
    megatron, notes = "actor_rollout_ref.actor.megatron", list[str]()
    settings = Settings(
        {
            "actor_rollout_ref.actor.strategy": "megatron",
            f"{megatron}.tensor_model_parallel_size": 4,
            f"{megatron}.expert_model_parallel_size": 1,
            f"{megatron}.pipeline_model_parallel_size": 2,
            f"{megatron}.context_parallel_size": 1,
            f"{megatron}.override_transformer_config.layernorm_epsilon": 0.1,
        }
    )
    found = _trainer(settings, 2, notes)
    assert found["ranks"] == found["shared"] == found["engine"]["tensor_model_parallel_size"] == 2
    assert found["engine"]["override_transformer_config"] == {"layernorm_epsilon": 0.1}
    assert notes == [
        "the trainer's tensor parallelism 4: computed with 2",
        "the trainer's pipeline parallelism 2: computed with 1",
    ]
