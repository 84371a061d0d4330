"""The configuration of an engine's model."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from verl_npu.errors import UnavailableError
from verl_npu.features.megatron import over_megatron, source, workers
from verl_npu.features.megatron.request import Request
from verl_npu.features.megatron.workers import (
    REQUEST,
    configure_each_engine_with_its_own_overrides,
    give_mindspeed_the_actors_or_refs_overrides,
)


def engine(**overrides: object) -> SimpleNamespace:
    made = SimpleNamespace(provider=None)
    setattr(made, REQUEST, Request("the language model's engine", overrides, {"context_parallel_size": 2}))
    return made


def through_the_bridge(engine: SimpleNamespace) -> None:
    """Write the script's overrides, and no others, to Megatron-Bridge's configuration, as upstream does."""
    engine.provider = SimpleNamespace(**getattr(engine, REQUEST).overrides)


def test_an_engine_does_not_make_its_groups_without_the_installed_mindspeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "package_folder", lambda package, part: tmp_path)
    name = "megatron.check_the_language_model_engines_overrides"
    (make_groups,) = [patch.implementation for patch in over_megatron if patch.id == name]
    made = SimpleNamespace(engine_config={})
    with pytest.raises(UnavailableError, match="the language model's engine: expected MindSpeed to be imported"):
        make_groups(lambda engine: None, made)
    monkeypatch.setitem(sys.modules, "mindspeed.megatron_adaptor", ModuleType("mindspeed.megatron_adaptor"))
    make_groups(lambda engine: None, made)


@pytest.mark.parametrize(
    ("overrides", "written"),
    [
        ({}, {"use_flash_attn": True, "context_parallel_size": 2}),
        ({"use_flash_attn": False, "context_parallel_size": 4}, {"use_flash_attn": False, "context_parallel_size": 4}),
    ],
)
def test_megatron_bridges_configuration_has_what_is_filled_in(overrides, written) -> None:
    made = engine(**overrides)
    configure_each_engine_with_its_own_overrides(through_the_bridge, made)
    assert vars(made.provider) == written


def test_an_engine_without_megatron_bridge_is_configured_as_it_is() -> None:
    made = engine()
    assert configure_each_engine_with_its_own_overrides(lambda engine: "configured", made) == "configured"
    assert made.provider is None


def test_an_engine_that_asked_mindspeed_for_nothing_is_left_alone() -> None:
    made = SimpleNamespace(provider=SimpleNamespace())
    configure_each_engine_with_its_own_overrides(lambda engine: None, made)
    assert vars(made.provider) == {}


def test_a_reference_worker_has_its_own_overrides_and_the_actors_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []
    monkeypatch.setattr(workers, "repatch", asked.append)
    actor = {"context_parallel_size": 2, "override_transformer_config": {"recompute_granularity": "full"}}
    reference = {"context_parallel_size": 1, "override_transformer_config": {"recompute_granularity": None}}
    roles = SimpleNamespace(actor=SimpleNamespace(megatron=actor), ref=SimpleNamespace(megatron=reference))
    give_mindspeed_the_actors_or_refs_overrides(lambda *_: None, SimpleNamespace(), roles, "ref")
    assert asked[0].overrides == {"recompute_granularity": None}
    assert asked[0].section["context_parallel_size"] == 2


class Placeholder:
    """A stand-in for the object that MindSpeed puts in place of TransformerEngine's functions."""


def replaced_by_mindspeed() -> None:
    """MindSpeed's own fused permutation."""


@pytest.mark.parametrize(
    ("fused", "permute", "asked"),
    [
        (Placeholder, "megatron.core.transformer.moe.moe_utils", False),
        (Placeholder, "mindspeed.core.fusions.fused_moe_permute", True),
        (replaced_by_mindspeed, "megatron.core.transformer.moe.moe_utils", True),
    ],
    ids=["a placeholder", "MindSpeed's own permute", "a function"],
)
def test_megatron_bridge_is_not_given_a_permutation_that_is_only_a_placeholder(
    fused: object, permute: str, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    moe = ModuleType("megatron.core.transformer.moe.moe_utils")
    own = SimpleNamespace(__module__=permute)
    vars(moe).update(fused_permute=fused, permute=own)
    monkeypatch.setitem(sys.modules, moe.__name__, moe)
    made = engine(moe_permute_fusion=True)
    configure_each_engine_with_its_own_overrides(through_the_bridge, made)
    assert made.provider.moe_permute_fusion is asked
