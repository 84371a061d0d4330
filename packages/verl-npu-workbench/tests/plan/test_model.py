"""Sizes of published models, checked by the number of parameters that their pages name.

The picture of each prompt: which models take one, and whether there is room.
"""

from __future__ import annotations

import dataclasses

import pytest
from verl_npu_workbench.plan.job import Picture
from verl_npu_workbench.plan.model import (
    PUBLISHED,
    Published,
    check_text_only,
    kind_of,
    model_of,
    picture_of,
    published,
)
from verl_npu_workbench.plan.share import share_of

from verl_npu.errors import PlanError

from .conftest import MODEL

pytest.importorskip("transformers")

NIGHTLY = pytest.mark.nightly("verl_npu_workbench/plan/published.json")


@pytest.mark.parametrize(
    "each",
    # The others are nightly: a model has up to tens of thousands of parameters to make, even without memory.
    [pytest.param(each, marks=() if each.name == "Qwen3-0.6b" else NIGHTLY, id=each.name) for each in PUBLISHED],
)
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
        ("~/models/DeepSeek-V3-hf", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-V3"),
    ],
)
def test_a_path_names_its_model(path: str, name: str) -> None:
    found = published(path)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "path",
    ["", "/models/my-model", "Qwen2-VL-7B-Instruct", "Qwen2.5-VL-9B", "Qwen3-3B", "gpt2", "DeepSeek-V3.1"],
)
def test_another_path_names_none(path: str) -> None:
    assert published(path) is None


def test_a_model_without_sizes_is_one_line(tmp_path) -> None:
    with pytest.raises(
        PlanError, match=r"the model '/no/such': expected a folder with the model's config.json, .*--model-config"
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


SEEING = dataclasses.replace(MODEL, picture=Picture(token=9, width=6, patches=4, positions=4))


def test_each_prompt_has_the_picture_that_was_asked_for(settings) -> None:
    assert picture_of(SEEING, 100, share_of(settings())) == (dataclasses.replace(SEEING.picture, tokens=100), [])


def test_prompts_without_pictures_are_said(settings) -> None:
    picture, notes = picture_of(SEEING, 0, share_of(settings()))
    assert picture == SEEING.picture
    assert "--picture-tokens" in notes[0]


def test_a_model_of_text_has_none_and_nothing_is_said(settings) -> None:
    assert picture_of(MODEL, 0, share_of(settings())) == (None, [])


def test_a_picture_for_a_model_of_text_is_one_line(settings) -> None:
    with pytest.raises(PlanError, match="--picture-tokens: expected a Qwen image-text model"):
        picture_of(MODEL, 100, share_of(settings()))


def test_a_picture_that_is_larger_than_a_prompt_is_one_line(settings) -> None:
    with pytest.raises(PlanError, match="expected fewer than the 1024 tokens of a prompt; found 1024"):
        picture_of(SEEING, 1024, share_of(settings()))


def test_fine_tuning_with_pictures_is_one_line() -> None:
    check_text_only(MODEL, 0)
    with pytest.raises(PlanError, match="--picture-tokens: expected a model and data with text only"):
        check_text_only(MODEL, 5)
    with pytest.raises(PlanError, match=r"the model a test: expected .* with text only, .* found an image-text model"):
        check_text_only(SEEING, 0)
