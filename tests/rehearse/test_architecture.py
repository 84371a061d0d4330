from __future__ import annotations

import pytest

from verl_npu.errors import RehearsalError
from verl_npu.rehearse.architecture import ARCHITECTURES, architecture_of

PATHS = {
    "Qwen/Qwen2.5-7B-Instruct": "qwen2",
    "Qwen2.5-Math-7B": "qwen2",
    "Qwen/QwQ-32B": "qwen2",
    "/mnt/ssd/models/Qwen2_5-0_5B": "qwen2",
    "Qwen/Qwen2.5-VL-3B-Instruct": "qwen2_5_vl",
    "/data/Qwen2_5_VL_32B": "qwen2_5_vl",
    "Qwen/Qwen3-8B": "qwen3",
    "/root/verl/models/Qwen3-8B-Base": "qwen3",
    "Qwen/Qwen3-30B-A3B-Base": "qwen3_moe",
    "Qwen3-235B-A22B": "qwen3_moe",
    "Qwen3-MoE": "qwen3_moe",
    "Qwen/Qwen3-VL-8B-Instruct": "qwen3_vl",
    "Qwen/Qwen3-VL-30B-A3B-Instruct": "qwen3_vl_moe",
    "Qwen/Qwen3-Next-80B-A3B-Instruct": "qwen3_next",
    "Qwen/Qwen3.5-27B": "qwen3_5",
    "Qwen3_5-122B-A10B": "qwen3_5_moe",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek_v3",
    "DeepSeek-R1": "deepseek_v3",
    "moonlight-16B-A3B": "deepseek_v3",
    "deepseek-ai/deepseek-llm-7b-chat": "llama",
    "meta-llama/Llama-3.1-8B": "llama",
    "/models/qwen3/Llama-3.1-8B": "llama",
    "/models/Qwen3-8B/snapshots/0123abcd": "qwen3",
    "/models/Qwen2.5-7B/": "qwen2",
    "C:\\models\\Qwen3-8B": "qwen3",
}


@pytest.mark.parametrize(("path", "name"), PATHS.items())
def test_architectures_by_path(path: str, name: str) -> None:
    assert architecture_of(path).name == name


@pytest.mark.parametrize("path", ["", "/", "my-model", "{MODEL_PATH}"])
def test_a_path_that_names_none_is_one_line(path: str) -> None:
    with pytest.raises(RehearsalError, match="--architecture NAME"):
        architecture_of(path)


def test_every_architecture_is_found_by_some_path() -> None:
    assert {each.name for each in ARCHITECTURES} == set(PATHS.values())


def test_those_with_images_are_those_of_vision() -> None:
    assert {each.name for each in ARCHITECTURES if each.sees} == {
        *("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
    }
