"""Writes config.json and tokenizer of the model whose settings FOLDER/asked.json has, and prints its sizes as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..rehearse.small_model import tokenizer

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_BYTES = 2  # of bfloat16, in which engines keep keys and values


def main(arguments: list[str]) -> int:
    """Make the folder that the command line names."""
    import torch
    import transformers

    folder = Path(arguments[0])
    asked: dict[str, Any] = json.loads((folder / "asked.json").read_text())
    tokens = tokenizer(folder)
    kind = asked.pop("model_type")
    # A tokenizer of ours has tokens enough for a plan, whatever the model's own has.
    asked |= {
        "eos_token_id": tokens["<|im_end|>"],
        "pad_token_id": tokens["<|endoftext|>"],
        "bos_token_id": tokens["<|endoftext|>"],
    }
    config = transformers.AutoConfig.for_model(kind, **asked)
    with torch.device("meta"):
        model = kind_of(config).from_config(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    text = config.get_text_config()
    told = {
        "parameters": sum(sizes.values()),
        "active": _active(sizes, text),
        "experts": _experts(sizes),
        "cache": _cache(text),
        "key_heads": _key_heads(text),
        "heads": text.num_attention_heads,
        "layers": text.num_hidden_layers,
        "picture": _picture(config),
    }
    print(json.dumps(told))
    return 0


def kind_of(config: PretrainedConfig) -> Any:
    """Return the class of transformers that makes a model of this configuration: of text, or of pictures and text."""
    import transformers

    if type(config) in transformers.AutoModelForCausalLM._model_mapping:
        return transformers.AutoModelForCausalLM
    return transformers.AutoModelForImageTextToText


def _picture(config: PretrainedConfig) -> dict[str, int] | None:
    """What Qwen's image-text models make of a picture; others are planned without one."""
    tower: Any = getattr(config, "vision_config", None)
    token = getattr(config, "image_token_id", None)
    if token is None or not hasattr(tower, "spatial_merge_size"):
        return None
    channels = getattr(tower, "in_channels", None) or tower.in_chans
    return {
        "token": token,
        "width": channels * tower.temporal_patch_size * tower.patch_size**2,
        "patches": tower.spatial_merge_size**2,
        "positions": 4,
    }


def _active(sizes: Mapping[str, int], text: PretrainedConfig) -> int:
    experts = _experts(sizes)
    all_of_them = getattr(text, "num_experts", None) or getattr(text, "n_routed_experts", None) or 1
    chosen = getattr(text, "num_experts_per_tok", None) or 1
    return sum(sizes.values()) - experts + experts * int(chosen) // int(all_of_them)


def _experts(sizes: Mapping[str, int]) -> int:
    return sum(size for name, size in sizes.items() if ".experts." in name)


def _cache(text: PretrainedConfig) -> int:
    """Bytes that a token takes in an engine's cache, on all NPUs together."""
    if rank := getattr(text, "kv_lora_rank", None):
        # Latent attention keeps one vector for all heads.
        return int(text.num_hidden_layers * (rank + text.qk_rope_head_dim) * _BYTES)
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * _key_heads(text) * width * _BYTES)


def _key_heads(text: PretrainedConfig) -> int:
    return int(getattr(text, "num_key_value_heads", text.num_attention_heads))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
