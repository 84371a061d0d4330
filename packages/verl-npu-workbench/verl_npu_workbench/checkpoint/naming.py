"""Names of tensors in Hugging Face's format, from those that trainers save."""

from __future__ import annotations

_WRAPPED = "base_model.model."


def of_adapters(name: str) -> str:
    """Return what a tensor of a model with LoRA adapters is called once base model and adapter are two files.

    An adapter keeps peft's prefix, and loses the name of the adapter; a layer below one loses `base_layer`.
    """
    if "lora_" in name:
        return name.replace(".default.weight", ".weight")
    return name.removeprefix(_WRAPPED).replace(".base_layer.weight", ".weight").replace(".base_layer.bias", ".bias")
