"""The engine generates only with complete weights that fit, whatever names a trainer has for them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from verl_npu.errors import RolloutError

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]


@pytest.fixture
def model(config: Any) -> Any:
    from verl_npu_workbench.simulation.rollout.model import build

    return build(config, __import__("torch").float32)


@pytest.fixture
def taken(model: Any, config: Any) -> Any:
    from verl_npu_workbench.simulation.rollout.weights import Weights

    return Weights(model, config)


def test_a_missing_weight_is_named(taken: Any, weights: dict[str, Any]) -> None:
    del weights["model.norm.weight"]
    taken.take(weights.items())
    with pytest.raises(RolloutError, match=r"1 missing, the first of them model\.norm\.weight"):
        taken.complete()


@pytest.mark.parametrize(
    ("name", "message"),
    [("stranger", "the weight stranger, which this model does not have"), ("model.norm.weight", r"shape \(16,\)")],
)
def test_a_weight_that_does_not_fit_is_named(taken: Any, weights: dict[str, Any], name: str, message: str) -> None:
    import torch

    with pytest.raises(RolloutError, match=message):
        taken.take({**weights, name: torch.zeros(3)}.items())


def test_a_rank_without_a_model_checks_what_it_is_handed(config: Any, weights: dict[str, Any]) -> None:
    import torch
    from verl_npu_workbench.simulation.rollout.model import build
    from verl_npu_workbench.simulation.rollout.weights import Weights

    with torch.device("meta"):
        checker = Weights(build(config, torch.float32), config)
    checker.take(weights.items())
    checker.complete()
    assert checker.ready
    with pytest.raises(RolloutError, match=r"shape \(16,\)"):
        checker.take([("model.norm.weight", torch.zeros(3))])


def test_what_engines_pass_over_is_passed_over(taken: Any, weights: dict[str, Any]) -> None:
    import torch

    others = ["model.layers.1.embed_tokens.weight", "mtp.fc.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"]
    taken.take({**weights, **dict.fromkeys(others, torch.zeros(1))}.items())
    taken.complete()
    assert taken.ready


def adapter(rank: int = 2, **others: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    import torch

    torch.manual_seed(1)
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    pair = {f"{name}.lora_A.weight": torch.randn(rank, 16), f"{name}.lora_B.weight": torch.randn(16, rank)}
    return pair, {"r": rank, "lora_alpha": 8, **others}


@pytest.mark.parametrize(
    ("others", "scale"), [({}, 4.0), ({"use_rslora": True}, 8 / 2**0.5), ({"alpha_pattern": {"q_proj": 2}}, 1.0)]
)
def test_an_adapter_is_added_as_peft_adds_it(
    taken: Any, model: Any, weights: dict[str, Any], others: dict[str, Any], scale: float
) -> None:
    import torch

    pair, settings = adapter(**others)
    taken.take(weights.items())
    taken.complete()
    for _ in range(2):  # the second is added to the base weights again, and not to the first
        taken.adapt(pair.items(), settings)
    first, second = pair.values()
    expected = weights["model.layers.0.self_attn.q_proj.weight"] + scale * second @ first
    torch.testing.assert_close(model.model.layers[0].self_attn.q_proj.weight, expected)


def test_an_adapter_is_a_hand_over_after_a_release(taken: Any, weights: dict[str, Any]) -> None:
    taken.take(weights.items())
    taken.complete()
    taken.release()
    assert not taken.ready
    taken.adapt(*((part.items() if number == 0 else part) for number, part in enumerate(adapter())))
    assert taken.ready


def test_an_adapter_to_nothing_is_refused(taken: Any) -> None:
    pair, settings = adapter()
    with pytest.raises(RolloutError, match="expected base weights to arrive before the adapter"):
        taken.adapt(pair.items(), settings)


def test_half_an_adapter_is_refused(taken: Any, weights: dict[str, Any]) -> None:
    pair, settings = adapter()
    taken.take(weights.items())
    taken.complete()
    with pytest.raises(RolloutError, match="only lora_A"):
        taken.adapt(list(pair.items())[:1], settings)


def test_base_weights_arrive_under_the_names_that_adapters_give_them(taken: Any, weights: dict[str, Any]) -> None:
    named = {re.sub(r"_proj\.", "_proj.base_layer.", name): value for name, value in weights.items()}
    assert named.keys() != weights.keys()
    taken.take(named.items())
    taken.complete()
    assert taken.ready


class Names:
    """The names of weights with the shapes of four experts of hidden size 6 and width 2."""

    def __init__(self, down: tuple[int, ...], both: tuple[int, ...], *others: str) -> None:
        import torch
        from verl_npu_workbench.simulation.rollout import weights

        block = "model.layers.0.mlp.experts"
        self.own = {f"{block}.down_proj": torch.zeros(down), f"{block}.gate_up_proj": torch.zeros(both)}
        self.own |= {name: torch.zeros(1) for name in others}
        self.names = weights.Names(self.own, {"^visual": "model.visual"}, [], 1)

    def find(self, name: str) -> Any:
        return self.names.find(name)


@pytest.mark.parametrize(
    ("down", "both"), [((4, 6, 2), (4, 4, 6)), ((4, 2, 6), (4, 6, 4))], ids=["out by in", "in by out"]
)
def test_one_experts_weight_goes_into_the_parameter_of_all(down: tuple[int, ...], both: tuple[int, ...]) -> None:
    names = Names(down, both)
    block = "model.layers.0.mlp.experts"
    parts = {half: names.find(f"{block}.3.{half}.weight") for half in ("gate_proj", "up_proj", "down_proj")}
    assert [tuple(place.view.shape) for place in parts.values()] == [(2, 6), (2, 6), (6, 2)]
    for number, place in enumerate(parts.values(), start=1):
        place.view.fill_(number)
    assert names.own[f"{block}.gate_up_proj"][3].sum() == 1 * 12 + 2 * 12
    assert names.own[f"{block}.down_proj"][3].unique().tolist() == [3]
    assert names.own[f"{block}.gate_up_proj"][:3].sum() == 0


@pytest.mark.parametrize(
    ("arrives", "own"),
    [
        ("visual.blocks.0.norm1.weight", "model.visual.blocks.0.norm1.weight"),
        ("model.norm.weight", "model.language_model.norm.weight"),
        ("language_model.model.norm.weight", "model.language_model.norm.weight"),
        ("model.language_model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
    ],
)
def test_an_image_models_weight_is_found_by_its_other_names(arrives: str, own: str) -> None:
    names = Names((4, 6, 2), (4, 4, 6), own)
    assert names.find(arrives).target is names.own[own]


def test_a_name_that_is_nobodys_finds_nothing() -> None:
    names = Names((4, 6, 2), (4, 4, 6))
    assert names.find("model.layers.0.mlp.experts.4.gate_proj.weight") is None
    assert names.find("model.norm.weight") is None
