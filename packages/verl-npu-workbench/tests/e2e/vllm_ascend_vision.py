"""FOLDER DTYPE: print how the real vllm-ascend on virtual NPUs and transformers answer to a picture, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NEW = 10
# The sections are those for which vllm-ascend has an operator of the NPU.
_TEXT = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [16, 24, 24]},
    "vocab_size": 512,
}
_VISION = {"hidden_size": 160, "out_hidden_size": 256, "num_heads": 2, "depth": 2, "fullatt_block_indexes": [1]}


def make(folder: Path, kind: str = "qwen2_5_vl", dtype: str = "float32") -> None:
    """Write a small random model with its tokenizer and processor."""
    import dataclasses

    import torch
    from safetensors.torch import load_file, save_file
    from verl_npu_workbench.rehearse.small_model import ARCHITECTURES, generate

    known = next(each for each in ARCHITECTURES if each.name == kind)
    if kind == "qwen2_5_vl":
        known = dataclasses.replace(known, text={**known.text, **_TEXT}, vision={**known.vision, **_VISION})
    generate(known, 2, folder)
    weights = load_file(folder / "model.safetensors")
    torch.manual_seed(0)
    for name, weight in weights.items():
        made = torch.randn(weight.shape) * 0.08 if weight.dim() > 1 else weight
        weights[name] = made.to(getattr(torch, dtype))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "torch_dtype": dtype, "dtype": dtype}))


def pictures() -> list[Any]:
    """Draw a few pictures of several sizes."""
    import numpy as np
    from PIL import Image

    drawn = np.random.default_rng(0)
    return [Image.fromarray(drawn.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in ((56, 84), (112, 56))]


def prompt() -> str:
    return (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is it?<|im_end|>\n<|im_start|>assistant\n"
    )


def expected(folder: Path) -> list[list[int]]:
    """Return transformers' own tokens."""
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    processor = AutoProcessor.from_pretrained(folder)
    tokens = []
    for picture in pictures():
        given = processor(text=[prompt()], images=[picture], return_tensors="pt")
        made = model.generate(**given, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
        tokens.append(made[0, given["input_ids"].shape[1] :].tolist())
    return tokens


def main() -> None:
    """Serve the model and print the answers."""
    from vllm import LLM, SamplingParams

    folder = Path(sys.argv[1])
    make(folder)
    engine = LLM(
        model=str(folder),
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=4,
        num_gpu_blocks_override=32,
        gpu_memory_utilization=0.5,
        limit_mm_per_prompt={"image": 1, "video": 0},
        dtype="float32",
    )
    asked = [{"prompt": prompt(), "multi_modal_data": {"image": picture}} for picture in pictures()]
    settings = SamplingParams(temperature=0, max_tokens=NEW, min_tokens=NEW, ignore_eos=True)
    answers = [list(answer.outputs[0].token_ids) for answer in engine.generate(asked, settings, use_tqdm=False)]
    print("ANSWER " + json.dumps({"expected": expected(folder), "tokens": answers}), flush=True)


if __name__ == "__main__":
    main()
