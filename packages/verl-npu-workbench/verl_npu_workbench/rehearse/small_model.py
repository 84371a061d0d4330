"""Creates small models with random weights. The architecture is determined from a model's path. Run as a program, this
module creates one model with its tokenizer: NAME LAYERS FOLDER."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verl_npu.errors import CommandError
from verl_npu.language import gettext as _

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LAYERS = 2
"""The smallest number of layers that includes every kind of layer."""
_ARCHITECTURES = Path(__file__).with_name("architectures.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A family of models, and the sizes of the small model that represents the family."""

    name: str
    """transformers' model type."""
    pattern: str
    """A pattern for the paths of models of this architecture. It is matched against the lower-case path."""
    text: Mapping[str, object]
    vision: Mapping[str, object]
    flat: bool = False
    """Whether published configurations of this architecture have the language model's settings at the top level."""
    fused: bool = False
    """Whether published checkpoints store all experts of a layer in one tensor, as transformers does in memory."""

    @property
    def takes_images(self) -> bool:
        return bool(self.vision)


def _read() -> Iterator[Architecture]:
    """Read the architectures. Their language and vision models are composed of named parts."""
    read = json.loads(_ARCHITECTURES.read_text())
    for each in read["architectures"]:
        parts = {
            kind: {key: value for name in each.get(kind, ()) for key, value in read["parts"][name].items()}
            for kind in ("text", "vision")
        }
        yield Architecture(**{**each, **parts})


ARCHITECTURES = tuple(_read())
"""The architectures, in search order. More specific patterns come first."""


def source() -> bytes:
    """Return the content of the source files that determine the small models. Models made from the same content are
    identical."""
    return Path(__file__).read_bytes() + _ARCHITECTURES.read_bytes()


def architecture_of(path: str) -> Architecture:
    """Return the architecture whose name is in a model's path.

    Raises:
        CommandError: the path does not contain the name of a known architecture.
    """
    # The last parts of a path name the model; a folder above may name another one.
    for part in reversed([part.lower() for part in re.split(r"[/\\]", path) if part]):
        for each in ARCHITECTURES:
            if re.search(each.pattern, part):
                return each
    raise CommandError(
        subject=_("the model {path!r}").format(path=path),
        expected=_("a path that contains the name of one of these architectures: ")
        + _(", ").join(each.name for each in ARCHITECTURES),
        found=_("a path that contains none of these names"),
        fix=_("specify the architecture with --architecture NAME"),
    )


SEED = 1
_CONSTANT, _END = 8.0, 1.3
"""The size, relative to other features, of the one feature that all tokens share, and the weight of this feature for
the token that ends an answer."""
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_IMAGE_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' or 'image' in part %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' or 'video' in part %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def generate(architecture: Architecture, layers: int, folder: Path) -> None:
    """Write a model with `layers` layers: its configuration, weights, and tokenizer, and a processor if the
    architecture has one.

    The seed is fixed, so the result is always the same.
    """
    import torch
    import transformers

    tokens = tokenizer(folder, architecture.takes_images)
    common = {
        "bos_token_id": tokens["<|endoftext|>"],
        "eos_token_id": tokens["<|im_end|>"],
        "pad_token_id": tokens["<|endoftext|>"],
    }
    text = {**architecture.text, "num_hidden_layers": layers, **common}
    if "layer_types" in text:
        kinds = list(architecture.text["layer_types"])  # type: ignore[call-overload]
        text["layer_types"] = [kinds[index % len(kinds)] for index in range(layers)]
    config_class = type(transformers.AutoConfig.for_model(architecture.name))
    if architecture.takes_images:
        ids = {
            "vision_start_token_id": tokens["<|vision_start|>"],
            "vision_end_token_id": tokens["<|vision_end|>"],
            "image_token_id": tokens["<|image_pad|>"],
            "video_token_id": tokens["<|video_pad|>"],
        }
        if "text_config" in getattr(config_class, "sub_configs", {}):
            config = config_class(text_config=text, vision_config=dict(architecture.vision), **ids, **common)
        else:
            config = config_class(**text, vision_config=dict(architecture.vision), **ids)
        config.tie_word_embeddings = False
        _processor(architecture, folder)
        maker = transformers.AutoModelForImageTextToText
    else:
        config = config_class(**text)
        maker = transformers.AutoModelForCausalLM
    torch.manual_seed(SEED)
    model = maker.from_config(config)
    _end_sometimes(model, tokens["<|im_end|>"], [tokens[name] for name in _IMAGE_TOKENS if name in tokens])
    model = model.to(torch.bfloat16)
    # By default, transformers writes each expert's tensors separately for every family.
    model.save_pretrained(folder, **({"save_original_format": False} if architecture.fused else {}))
    if architecture.flat:
        _flatten(folder / "config.json")
    _with_index(folder)


def _flatten(path: Path) -> None:
    """Move the language model's settings to the top level of a configuration, which is where published configurations
    have them."""
    settings = json.loads(path.read_text())
    text = settings.pop("text_config", {})
    path.write_text(json.dumps({**text, **settings}, indent=2))


def _end_sometimes(model: PreTrainedModel, end: int, never: list[int]) -> None:
    """Make a random model end its answer with some probability at each token, and never write image tokens.

    Answers of equal length would hide errors in the handling of lengths. For example, torch lays out nested tensors
    differently if all parts have the same length.
    """
    import torch

    into, out = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    with torch.no_grad():
        # One feature is the same for all tokens, and so acts as a bias of the output.
        into[:, 0] = _CONSTANT * into.std()
        out[end, 0] = _END
        out[never, 0] = -_END * 4


def _with_index(folder: Path) -> None:
    """Add the index file of a multi-file checkpoint, because some loaders read only checkpoints with an index."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        names = dict.fromkeys(file.keys(), "model.safetensors")
    size = (folder / "model.safetensors").stat().st_size
    index = {"metadata": {"total_size": size}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def tokenizer(folder: Path, images: bool = False) -> dict[str, int]:
    """Write a byte-level tokenizer with one token for each digit, like Qwen's. Return the ids of its special tokens.

    With `images`, the special tokens include those for images and videos.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    special = [*_SPECIAL, *(_IMAGE_TOKENS if images else ())]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["system user assistant What is the sum of two numbers?"] * 10, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(_IMAGE_TOKENS) if images else [],
        model_max_length=4096,
        # Like the families' own tokenizers: these models do not accept token types.
        model_input_names=["input_ids", "attention_mask"],
    )
    fast.chat_template = _TEMPLATE
    fast.save_pretrained(folder)
    if images:
        # Processors of this family require this tokenizer class.
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text())
        settings["tokenizer_class"] = "Qwen2TokenizerFast"
        path.write_text(json.dumps(settings, indent=1))
        _qwen2_files(fast, folder)
    return {name: fast.convert_tokens_to_ids(name) for name in special}


def _qwen2_files(fast: object, folder: Path) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))


def _processor(architecture: Architecture, folder: Path) -> None:
    patch = architecture.vision["patch_size"]
    side = int(patch) * int(architecture.vision["spatial_merge_size"])  # type: ignore[call-overload]
    kind = "Qwen2_5_VLProcessor" if architecture.name == "qwen2_5_vl" else "Qwen3VLProcessor"
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": kind,
        "patch_size": patch,
        "merge_size": architecture.vision["spatial_merge_size"],
        "temporal_patch_size": architecture.vision["temporal_patch_size"],
        "min_pixels": side * side,
        "max_pixels": 16 * side * side,
        "size": {"shortest_edge": side * side, "longest_edge": 16 * side * side},
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=1))
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": _TEMPLATE}))
    # Later versions read the template from a file of its own, and have a processor for videos.
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    video = {**settings, "video_processor_type": "Qwen2VLVideoProcessor"}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video, indent=1))


def main(words: list[str]) -> int:
    """Create the model that is specified on the command line."""
    name, layers, folder = words
    found = next(each for each in ARCHITECTURES if each.name == name)
    generate(found, int(layers), Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
