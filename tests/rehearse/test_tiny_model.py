"""Small models that transformers itself loads and runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from verl_npu.rehearse import tiny_model  # noqa: E402  # after what it needs
from verl_npu.rehearse.architecture import ARCHITECTURES, Architecture  # noqa: E402


def architecture(name: str) -> Architecture:
    return next(each for each in ARCHITECTURES if each.name == name)


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen2")
    tiny_model.generate(architecture("qwen2"), 2, folder)
    return folder


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torchvision")
    folder = tmp_path_factory.mktemp("vision")
    tiny_model.generate(architecture("qwen2_5_vl"), 2, folder)
    return folder


def test_a_text_model_answers_a_question(qwen2: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(qwen2)
    model = transformers.AutoModelForCausalLM.from_pretrained(qwen2)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 1 + 2?"}], add_generation_prompt=True, tokenize=False
    )
    assert text == "<|im_start|>user\nWhat is 1 + 2?<|im_end|>\n<|im_start|>assistant\n"
    tokens = tokenizer(text, return_tensors="pt")
    assert model.generate(**tokens, max_new_tokens=4, do_sample=False).shape[1] > tokens["input_ids"].shape[1]


def test_it_has_as_many_layers_as_are_asked_for(tmp_path: Path) -> None:
    tiny_model.generate(architecture("qwen2"), 4, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 4


def test_digits_are_tokens_of_their_own_and_text_comes_back(qwen2: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(qwen2)
    assert tokenizer.tokenize("123") == ["1", "2", "3"]
    assert tokenizer.decode(tokenizer("é中 text").input_ids) == "é中 text"
    assert len(tokenizer) <= architecture("qwen2").text["vocab_size"]


def test_a_checkpoint_has_an_index_of_all_its_weights(qwen2: Path) -> None:
    from safetensors import safe_open

    index = json.loads((qwen2 / "model.safetensors.index.json").read_text())
    with safe_open(qwen2 / "model.safetensors", "pt") as file:
        assert set(index["weight_map"]) == set(file.keys())


def test_it_is_the_same_each_time(qwen2: Path, tmp_path: Path) -> None:
    tiny_model.generate(architecture("qwen2"), 2, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (qwen2 / "model.safetensors").read_bytes()


def test_a_model_with_eyes_sees_a_picture(vision: Path) -> None:
    from PIL import Image

    processor = transformers.AutoProcessor.from_pretrained(vision)
    model = transformers.AutoModelForImageTextToText.from_pretrained(vision)
    content = [{"type": "image"}, {"type": "text", "text": "What is 1 + 2?"}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(text=[text], images=[Image.new("RGB", (64, 64))], return_tensors="pt")
    assert model(**inputs).logits.shape[:2] == inputs["input_ids"].shape


def test_a_picture_fits_into_a_rehearsals_prompt(vision: Path) -> None:
    from PIL import Image

    from verl_npu.rehearse.preparation import _PICTURE_TOKENS

    processor = transformers.AutoProcessor.from_pretrained(vision)
    (grid,) = processor.image_processor(images=[Image.new("RGB", (64, 64))], return_tensors="pt")["image_grid_thw"]
    assert int(grid.prod()) // 4 <= _PICTURE_TOKENS


def test_the_command_makes_what_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_model.main(["qwen2", "1", str(tmp_path)]) == 0
    assert (tmp_path / "model.safetensors").is_file()
    assert capsys.readouterr().out == "512\n"


def test_settings_of_the_language_model_are_where_published_checkpoints_have_them(vision: Path) -> None:
    written = json.loads((vision / "config.json").read_text())
    assert "text_config" not in written
    assert (written["model_type"], written["hidden_size"]) == (
        "qwen2_5_vl",
        architecture("qwen2_5_vl").text["hidden_size"],
    )
    assert transformers.AutoConfig.from_pretrained(vision).get_text_config().hidden_size == written["hidden_size"]


@pytest.mark.skipif(not hasattr(transformers, "Qwen3_5MoeConfig"), reason="transformers older than Qwen3.5")
def test_a_hybrid_model_is_as_published_for_what_reads_the_files_itself(tmp_path: Path) -> None:
    tiny_model.generate(architecture("qwen3_5_moe"), 4, tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    attends = [kind == "full_attention" for kind in text["layer_types"]]
    assert attends == [(index + 1) % text["full_attention_interval"] == 0 for index in range(4)]
    names = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert "model.language_model.layers.0.mlp.experts.gate_up_proj" in names
    assert not any("experts.0." in name for name in names)
