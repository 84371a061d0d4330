"""Sizes of published models: checked by the number of parameters that their pages name."""

from __future__ import annotations

import pytest

from verl_npu.errors import PlanError
from verl_npu.plan.making import kind_of
from verl_npu.plan.model import model_of
from verl_npu.plan.published import PUBLISHED, Published, published

pytest.importorskip("transformers")


@pytest.mark.parametrize("each", PUBLISHED, ids=lambda each: each.name)
def test_it_has_the_parameters_that_its_page_names(each: Published) -> None:
    import torch
    from transformers import AutoConfig

    with torch.device("meta"):
        config = AutoConfig.for_model(each.kind, **each.settings)
        model = kind_of(config).from_config(config)
    found = sum(weight.numel() for weight in model.parameters()) / 1e9
    assert found == pytest.approx(each.billions, rel=0.03)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/models/Qwen/Qwen3-8B", "Qwen3-8b"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7b"),
        ("Qwen2.5-Math-7B", "Qwen2.5-7b"),
        ("~/verl/models/Qwen3-30B-A3B-Base", "Qwen3-30B-A3B"),
        ("/mnt/Qwen2.5-32B", "Qwen2.5-32b"),
        ("Qwen3-0.6B", "Qwen3-0.6b"),
        ("Qwen/Qwen3-VL-8B-Instruct", "Qwen3-VL-8B"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "Qwen2.5-VL-7b"),
        ("/models/qwen2_5_vl_32b", "Qwen2.5-VL-32b"),
        ("moonshotai/Moonlight-16B-A3B-Instruct", "Moonlight-16B-A3B"),
    ],
)
def test_a_path_names_its_model(path: str, name: str) -> None:
    found = published(path)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("path", ["", "/models/my-model", "Qwen2-VL-7B-Instruct", "Qwen2.5-VL-9B", "Qwen3-3B", "gpt2"])
def test_another_path_names_none(path: str) -> None:
    assert published(path) is None


def test_a_model_without_sizes_is_one_line(tmp_path) -> None:
    with pytest.raises(
        PlanError, match=r"the model '/no/such': expected a folder with its config.json, .*--model-config"
    ):
        model_of("/no/such", None, tmp_path)


def test_a_config_that_is_none_is_one_line(tmp_path) -> None:
    broken = tmp_path / "config.json"
    broken.write_text("{")
    with pytest.raises(PlanError, match="expected a model's config"):
        model_of("x", broken, tmp_path / "made")
    broken.write_text("{}")
    with pytest.raises(PlanError, match="model_type"):
        model_of("x", broken, tmp_path / "made")
    with pytest.raises(PlanError, match=r"--model-config .*: expected a config"):
        model_of("x", tmp_path / "missing.json", tmp_path / "made")
