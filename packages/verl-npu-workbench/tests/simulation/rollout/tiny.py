"""Tiny models for images and text, with random weights, a tokenizer and a processor of their own.

`python tests/simulation/rollout/tiny.py FOLDER ARCHITECTURE` writes one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3]}
SEES = {"patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2}


def tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen2TokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["What is the colour of this image?"], trainer)
    words = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return Qwen2TokenizerFast(tokenizer_object=made, additional_special_tokens=list(SPECIAL[1:]), **words)


def _configuration(architecture: str) -> Any:
    import transformers

    ids = {
        f"{name}_token_id": SPECIAL.index(f"<|{word}|>")
        for name, word in (
            ("image", "image_pad"),
            ("video", "video_pad"),
            ("vision_start", "vision_start"),
            ("vision_end", "vision_end"),
        )
    }
    if architecture == "qwen2_5_vl":
        vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32}
        vision |= SEES | {"window_size": 16, "fullatt_block_indexes": [1]}
        text = TEXT | {"rope_scaling": {"type": "mrope", **ROPE}}
        return transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids)
    if architecture == "qwen2_vl":
        vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2} | SEES
        text = TEXT | {"rope_scaling": {"type": "mrope", **ROPE}}
        return transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **ids)
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32}
    vision |= SEES | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    moe = architecture.endswith("_moe")
    text = TEXT | {"rope_scaling": ROPE | {"mrope_interleaved": True}} | (MIXTURE if moe else {})
    name = {"qwen3_vl": "Qwen3VLConfig", "qwen3_vl_moe": "Qwen3VLMoeConfig", "qwen3_5": "Qwen3_5Config"}[architecture]
    if architecture == "qwen3_5":
        vision.pop("deepstack_visual_indexes")
        text |= {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "rope_parameters": ROPE | {"mrope_interleaved": True, "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        }
    return getattr(transformers, name)(text_config=text, vision_config=vision, **ids)


def _processor(architecture: str) -> Any:
    import transformers
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    bounds = {"min_pixels": 8 * 8, "max_pixels": 64 * 64}
    sees = {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2}
    parts: dict[str, Any] = {"image_processor": Qwen2VLImageProcessor(**sees, **bounds), "tokenizer": tokenizer()}
    three = architecture.startswith("qwen3")
    video = "Qwen3VLVideoProcessor" if three else "Qwen2VLVideoProcessor"
    if hasattr(transformers, video):
        parts["video_processor"] = getattr(transformers, video)(**sees)
    name = {"qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor"}.get(architecture, "Qwen3VLProcessor")
    return getattr(transformers, name)(**parts, chat_template=TEMPLATE)


def write(folder: Path, architecture: str) -> Path:
    """Write the model to `folder`; it is the same each time."""
    import torch
    from transformers import AutoModelForImageTextToText

    config = _configuration(architecture)
    words = {"eos_token_id": SPECIAL.index("<|im_end|>"), "pad_token_id": SPECIAL.index("<|endoftext|>")}
    for part in (config, config.get_text_config()):
        for key, value in words.items():
            setattr(part, key, value)
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    _processor(architecture).save_pretrained(folder)
    # transformers before 4.57 looks for it there.
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
