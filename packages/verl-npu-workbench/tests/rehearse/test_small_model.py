from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from verl_npu_workbench.rehearse import small_model
from verl_npu_workbench.rehearse.small_model import ARCHITECTURES, Architecture, architecture_of

from verl_npu.errors import CommandError

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
    with pytest.raises(CommandError, match="--architecture NAME"):
        architecture_of(path)


def test_every_architecture_is_found_by_some_path() -> None:
    assert {each.name for each in ARCHITECTURES} == set(PATHS.values())


def test_those_with_images_are_those_of_vision() -> None:
    assert {each.name for each in ARCHITECTURES if each.takes_images} == {
        *("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
    }


def architecture(name: str) -> Architecture:
    return next(each for each in ARCHITECTURES if each.name == name)


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    for name in ("torch", "tokenizers"):
        pytest.importorskip(name)
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def qwen2(transformers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen2")
    small_model.generate(architecture("qwen2"), 2, folder)
    return folder


@pytest.fixture(scope="module")
def vision(transformers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torchvision")
    folder = tmp_path_factory.mktemp("vision")
    small_model.generate(architecture("qwen2_5_vl"), 2, folder)
    return folder


ANSWER = """
import subprocess
import sys, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
question = [{"role": "user", "content": "What is 1 + 2?"}]
text = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
assert text == "<|im_start|>user\\nWhat is 1 + 2?<|im_end|>\\n<|im_start|>assistant\\n", text
tokens = tokenizer(text, return_tensors="pt")
print(model.generate(**tokens, max_new_tokens=4, do_sample=False).shape[1] - tokens["input_ids"].shape[1])
"""


@pytest.mark.usefixtures("transformers")
def test_a_text_model_answers_a_question(qwen2: Path) -> None:
    # In its own process: an earlier test may have imported verl, whose RMSNorm on NPUs takes no tensor of the host.
    command = [sys.executable, "-c", ANSWER, str(qwen2)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) > 0


def test_it_has_as_many_layers_as_are_asked_for(transformers: ModuleType, tmp_path: Path) -> None:
    small_model.generate(architecture("qwen2"), 4, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 4


def test_digits_are_tokens_of_their_own_and_text_comes_back(transformers: ModuleType, qwen2: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(qwen2)
    assert tokenizer.tokenize("123") == ["1", "2", "3"]
    assert tokenizer.decode(tokenizer("é中 text").input_ids) == "é中 text"
    assert len(tokenizer) <= architecture("qwen2").text["vocab_size"]


def test_a_checkpoint_has_an_index_of_all_its_weights(qwen2: Path) -> None:
    from safetensors import safe_open

    index = json.loads((qwen2 / "model.safetensors.index.json").read_text())
    with safe_open(qwen2 / "model.safetensors", "pt") as file:
        assert set(index["weight_map"]) == set(file.keys())


def test_it_is_the_same_each_time(transformers: ModuleType, qwen2: Path, tmp_path: Path) -> None:
    small_model.generate(architecture("qwen2"), 2, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (qwen2 / "model.safetensors").read_bytes()


def test_a_model_with_eyes_sees_a_picture(transformers: ModuleType, vision: Path) -> None:
    from PIL import Image

    processor = transformers.AutoProcessor.from_pretrained(vision)
    model = transformers.AutoModelForImageTextToText.from_pretrained(vision)
    content = [{"type": "image"}, {"type": "text", "text": "What is 1 + 2?"}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(text=[text], images=[Image.new("RGB", (64, 64))], return_tensors="pt")
    assert model(**inputs).logits.shape[:2] == inputs["input_ids"].shape


def test_a_picture_fits_into_a_rehearsals_prompt(transformers: ModuleType, vision: Path) -> None:
    from PIL import Image
    from verl_npu_workbench.rehearse.preparation import _PICTURE_TOKENS

    processor = transformers.AutoProcessor.from_pretrained(vision)
    (grid,) = processor.image_processor(images=[Image.new("RGB", (64, 64))], return_tensors="pt")["image_grid_thw"]
    assert int(grid.prod()) // 4 <= _PICTURE_TOKENS


def test_the_command_makes_what_it_is_told(transformers: ModuleType, tmp_path: Path) -> None:
    assert small_model.main(["qwen2", "1", str(tmp_path)]) == 0
    assert (tmp_path / "model.safetensors").is_file()


def test_settings_of_the_language_model_are_where_published_checkpoints_have_them(
    transformers: ModuleType, vision: Path
) -> None:
    written = json.loads((vision / "config.json").read_text())
    assert "text_config" not in written
    assert (written["model_type"], written["hidden_size"]) == (
        "qwen2_5_vl",
        architecture("qwen2_5_vl").text["hidden_size"],
    )
    assert transformers.AutoConfig.from_pretrained(vision).get_text_config().hidden_size == written["hidden_size"]


def test_a_hybrid_model_is_as_published_for_what_reads_the_files_itself(
    transformers: ModuleType, tmp_path: Path
) -> None:
    if not hasattr(transformers, "Qwen3_5MoeConfig"):
        pytest.skip("transformers older than Qwen3.5")
    small_model.generate(architecture("qwen3_5_moe"), 4, tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    attends = [kind == "full_attention" for kind in text["layer_types"]]
    assert attends == [(index + 1) % text["full_attention_interval"] == 0 for index in range(4)]
    names = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert "model.language_model.layers.0.mlp.experts.gate_up_proj" in names
    assert not any("experts.0." in name for name in names)
