from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from harness import model
from harness.errors import BadInput

# torch and transformers warn about themselves while they are imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_model_loads_and_its_tokenizer_gives_each_digit_a_token(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    folder = model.generate(tmp_path / "model", seed=0)
    config = AutoConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 12 + 3?"}], add_generation_prompt=True, tokenize=False
    )
    assert text.endswith("<|im_start|>assistant\n")
    assert tokenizer.decode(tokenizer("What is 12 + 3?")["input_ids"]) == "What is 12 + 3?"
    assert len(tokenizer("4711")["input_ids"]) == 4
    assert len(tokenizer) <= config.vocab_size
    assert tokenizer.eos_token_id == config.eos_token_id != tokenizer.pad_token_id


def test_experts_make_it_a_mixture_with_a_weight_for_each(tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoConfig

    folder = model.generate(tmp_path / "model", seed=0, key_value_heads=2, experts=4)
    config = AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.num_experts, config.num_key_value_heads) == ("qwen3_moe", 4, 2)
    names = load_file(folder / "model.safetensors")
    wanted = {f"model.layers.{layer}.mlp.experts.{e}.down_proj.weight" for layer in range(2) for e in range(4)}
    assert wanted <= names.keys()


def test_unless_it_is_padded_each_of_its_tokens_is_one_of_the_tokenizers(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    folder = model.generate(tmp_path / "model", seed=0, padded=False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert AutoConfig.from_pretrained(folder).vocab_size == len(tokenizer) < model.VOCABULARY


def test_same_seed_same_weights(tmp_path: Path) -> None:
    from harness import weights

    one, two, three = (model.generate(tmp_path / str(number), seed) for number, seed in enumerate((0, 0, 1)))
    assert weights.compare(one, two).moved == 0
    assert weights.compare(one, three).moved > 0
    assert weights.compare(one, three).largest > 0


def test_bad_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"config\.json"):
        model.obtain(str(tmp_path))
    with pytest.raises(BadInput, match=r"found \./nowhere, which is neither"):
        model.obtain("./nowhere")
    assert model.obtain("some/name") == "some/name"
