"""Makes the model for a plan: a folder with a full-size model but no weights, and the sizes of the model.

The sizes come from the model's own config.json, or from published.json if a launch script only names the model. The
folder is made by this module running as a separate program (`main`), because a plan itself imports neither torch nor
transformers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_npu.ascend.variables import VIRTUAL_NPUS
from verl_npu.errors import PlanError
from verl_npu.language import gettext as _

from ..processes import captured, own_python
from .job import Picture
from .share import Share

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_BYTES = 2  # of bfloat16, in which engines keep weights, keys and values


@dataclass(frozen=True, slots=True)
class Published:
    """One published model whose configuration is included in verl-npu."""

    name: str
    pattern: str
    """A pattern for one part of a path, in lower case."""
    kind: str
    """transformers' model type."""
    settings: Mapping[str, object]
    billions: float
    """The number of parameters, in billions, on the model's page. The settings are checked against it."""


PUBLISHED = tuple(
    Published(**each) for each in json.loads(Path(__file__).with_name("published.json").read_text())["models"]
)


def published(path: str) -> Published | None:
    """Return the published model whose name is a component of the path, or None if there is no such model. The
    components are searched from last to first."""
    for part in reversed([part.lower().replace("_", "-") for part in re.split(r"[/\\]", path) if part]):
        for each in PUBLISHED:
            if re.search(each.pattern, part):
                return each
    return None


@dataclass(frozen=True, slots=True)
class Model:
    """A model's folder, and the sizes that can be computed without running the model."""

    folder: Path
    source: str
    """The source of its sizes, for the report."""
    parameters: int
    cache: int
    """The bytes of one token's key-value cache in bfloat16, added up over all NPUs of an engine."""
    key_heads: int
    heads: int
    layers: int
    active: int
    """The number of parameters that one token uses. In a mixture of experts, only the chosen experts count."""
    experts: int
    """The number of parameters of all experts."""
    largest: int
    """Bytes of the largest weight outside experts, as an engine receives it."""
    tied: bool = False
    """Whether the embedding and the head share their weights."""
    picture: Picture | None = None
    """How the model represents images. None if it takes no images."""


def model_of(path: str, given: Path | None, folder: Path) -> Model:
    """Create the folder of the script's model. If the user specified a config.json, create the folder of that model
    instead.

    Raises:
        PlanError: the model's sizes are unknown, or transformers rejects its configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config, source = _config(path, given)
    (folder / "asked.json").write_text(json.dumps(config))
    done = captured(own_python("-m", __name__, str(folder)), env=os.environ | {VIRTUAL_NPUS: "1"})
    if done.returncode != 0:
        raise PlanError(
            subject=_("the model {source}").format(source=source),
            expected=_("a configuration that the installed version of transformers supports"),
            found=(done.stderr.strip().splitlines() or ["no output"])[-1][:300],
            fix=_("specify the model's config.json with --model-config PATH; the file must set model_type"),
        )
    told = json.loads(done.stdout.splitlines()[-1])
    _take_tokenizer(folder_of(path, given), folder)
    picture = told.pop("picture")
    return Model(folder, source, **told, picture=Picture(**picture) if picture else None)


def folder_of(path: str, given: Path | None) -> Path:
    """Return the folder that contains a model's own files: the folder of the config.json that the user specified,
    otherwise the script's `path`."""
    own = given if given is not None else Path(path).expanduser()
    return own if own.is_dir() else own.parent


def _config(path: str, given: Path | None) -> tuple[dict[str, object], str]:
    """Return a model's configuration and its source."""
    place = given if given is not None else Path(path).expanduser()
    file = place / "config.json" if place.is_dir() else place
    if file.is_file():
        return _read(file), str(file)
    if given is not None:
        raise PlanError(
            subject=f"--model-config {given}",
            expected=_("a config.json, or a folder with a config.json"),
            found=_("no config.json"),
            fix=_("specify the config.json of the model that the script trains"),
        )
    known = published(path)
    if known is None:
        raise PlanError(
            subject=_("the model {path!r}").format(path=path),
            expected=_("a folder with the model's config.json, or one of ")
            + _(", ").join(each.name for each in PUBLISHED),
            found=_("a path that is neither a model folder nor the name of a known model"),
            fix=_("specify the model's config.json with --model-config PATH"),
        )
    return {"model_type": known.kind, **known.settings}, _("{known}, as published").format(known=known.name)


def _read(file: Path) -> dict[str, object]:
    try:
        read = json.loads(file.read_text())
        found = "no config.json"
    except (OSError, ValueError) as error:
        read, found = None, str(error)
    if isinstance(read, dict) and "model_type" in read:
        return read
    raise PlanError(
        subject=str(file),
        expected=_("a model's config.json that sets model_type"),
        found=found,
        fix=_("specify the path of a valid config.json with --model-config"),
    )


def _take_tokenizer(place: Path, folder: Path) -> None:
    """Replace the generated tokenizer with the model's own, if the model has one."""
    if (place / "tokenizer_config.json").is_file():
        for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json"):
            if (place / name).is_file():
                shutil.copy(place / name, folder / name)


def picture_of(model: Model, tokens: int, share: Share) -> tuple[Picture | None, list[str]]:
    """Return a description of the image in each prompt, and notes for the user. The image has `tokens` tokens. If
    `tokens` is 0 and the model does not support images, the description is None.

    Raises:
        PlanError: the model does not support images, or the image does not fit into a prompt.
    """
    if tokens and model.picture is None:
        raise PlanError(
            subject="--picture-tokens",
            expected=_("a Qwen image-text model"),
            found=model.source,
            fix=_("remove --picture-tokens"),
        )
    shortest = min((prompt for prompt, _unused in (*share.lengths, *share.scored_lengths)), default=share.prompt)
    if tokens >= shortest:
        raise PlanError(
            subject="--picture-tokens",
            expected=_("fewer than the {shortest} tokens of a prompt").format(shortest=shortest),
            found=str(tokens),
            fix=_("make the prompts longer, or the image smaller"),
        )
    if model.picture is None:
        return None, []
    notes = [] if tokens else [_("prompts have no pictures in this plan; --picture-tokens adds pictures")]
    return replace(model.picture, tokens=tokens), notes


def check_text_only(model: Model, tokens: int) -> None:
    """Check that fine-tuning is planned without images.

    Raises:
        PlanError: the model takes images, or the user asks for some.
    """
    if tokens or model.picture is not None:
        raise PlanError(
            subject="--picture-tokens" if tokens else _("the model {source}").format(source=model.source),
            expected=_("a model and data with text only, because plans do not support fine-tuning with images yet"),
            found=_("{tokens} tokens for an image").format(tokens=tokens) if tokens else _("an image-text model"),
            fix=_("remove --picture-tokens")
            if tokens
            else _("choose a script that trains a language model without images"),
        )


def main(arguments: list[str]) -> int:
    """Write config.json and a tokenizer into the folder in `arguments`, and print the model's sizes as JSON.

    The settings come from asked.json in that folder.
    """
    import torch
    import torch._dynamo  # torch 2.8 cannot import it inside `torch.device`, where transformers would import it.
    import transformers

    from ..rehearse.small_model import tokenizer

    folder = Path(arguments[0])
    asked: dict[str, Any] = json.loads((folder / "asked.json").read_text())
    tokens = tokenizer(folder)
    kind = asked.pop("model_type")
    # These are tokens of our generated tokenizer, which is large enough for a plan.
    asked |= {
        "eos_token_id": tokens["<|im_end|>"],
        "pad_token_id": tokens["<|endoftext|>"],
        "bos_token_id": tokens["<|endoftext|>"],
    }
    config = transformers.AutoConfig.for_model(kind, **asked)
    # Drawing weights takes most of the time, even without memory, and nobody reads them.
    torch.Tensor.normal_ = torch.Tensor.uniform_ = lambda weight, *_, **__: weight
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
        "largest": max(size for name, size in sizes.items() if ".experts." not in name) * _BYTES,
        "tied": bool(getattr(config, "tie_word_embeddings", False)),
        "cache": _cache(text),
        "key_heads": _key_heads(text),
        "heads": text.num_attention_heads,
        "layers": text.num_hidden_layers,
        "picture": _picture(config),
    }
    print(json.dumps(told))
    return 0


def kind_of(config: PretrainedConfig) -> Any:
    """Return the transformers class that creates a model with this configuration: a class for text only, or a class
    for images and text."""
    import transformers

    if type(config) in transformers.AutoModelForCausalLM._model_mapping:
        return transformers.AutoModelForCausalLM
    return transformers.AutoModelForImageTextToText


def _picture(config: PretrainedConfig) -> dict[str, int] | None:
    """Return the image properties of one of Qwen's image-text models. None for other models."""
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
    """Return the bytes that a token takes in an engine's cache, added up over all NPUs."""
    if rank := getattr(text, "kv_lora_rank", None):
        # Latent attention keeps one vector for all heads.
        return int(text.num_hidden_layers * (rank + text.qk_rope_head_dim) * _BYTES)
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * _key_heads(text) * width * _BYTES)


def _key_heads(text: PretrainedConfig) -> int:
    return int(getattr(text, "num_key_value_heads", text.num_attention_heads))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
