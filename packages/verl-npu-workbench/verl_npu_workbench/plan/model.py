"""The model of a plan: a folder of full size without weights, its sizes, and the picture that its prompts may have.

Its sizes are those of its own config.json, or of published.json, by the names that launch scripts use. The folder is
made by this module as a program (`main`), as a plan itself imports neither torch nor transformers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_npu.ascend.variables import VIRTUAL_NPUS
from verl_npu.errors import PlanError
from verl_npu.language import gettext as _

from ..processes import own_python
from .job import Picture
from .share import Share

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_BYTES = 2  # of bfloat16, in which engines keep weights, keys and values


@dataclass(frozen=True, slots=True)
class Published:
    """One model."""

    name: str
    pattern: str
    """What the last part of a path looks like, in lower case."""
    kind: str
    """transformers' model type."""
    settings: Mapping[str, object]
    billions: float
    """Parameters that its page names, which check the settings."""


PUBLISHED = tuple(
    Published(**each) for each in json.loads(Path(__file__).with_name("published.json").read_text())["models"]
)


def published(path: str) -> Published | None:
    """Return the model that the last parts of a path name; None if it is none of them."""
    for part in reversed([part.lower().replace("_", "-") for part in re.split(r"[/\\]", path) if part]):
        for each in PUBLISHED:
            if re.search(each.pattern, part):
                return each
    return None


@dataclass(frozen=True, slots=True)
class Model:
    """What a plan knows of a model before it runs."""

    folder: Path
    source: str
    """Where its sizes come from, for the report."""
    parameters: int
    cache: int
    """Bytes of the key-value cache for one token, in bfloat16, on all NPUs of an engine together."""
    key_heads: int
    heads: int
    layers: int
    active: int
    """Parameters that take part for one token: of a mixture of experts, those that are chosen."""
    experts: int
    """Parameters of all experts."""
    largest: int
    """Bytes of the largest weight that is no expert's, as it is handed to an engine."""
    picture: Picture | None = None
    """What it makes of a picture; None if it takes none."""


def model_of(path: str, given: Path | None, folder: Path) -> Model:
    """Make the folder of the model that a script names by `path`, or of the config.json that the user gives.

    Raises:
        PlanError: neither tells the model's sizes, or transformers does not take them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config, source = _config(path, given)
    (folder / "asked.json").write_text(json.dumps(config))
    done = subprocess.run(
        own_python("-m", __name__, str(folder)),
        env=os.environ | {VIRTUAL_NPUS: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise PlanError(
            subject=_("the model {source}").format(source=source),
            expected=_("a configuration that the installed transformers takes"),
            found=(done.stderr.strip().splitlines() or ["no output"])[-1][:300],
            fix=_("give the config.json of the model, with its model_type: --model-config PATH"),
        )
    told = json.loads(done.stdout.splitlines()[-1])
    _take_tokenizer(folder_of(path, given), folder)
    picture = told.pop("picture")
    return Model(folder, source, **told, picture=Picture(**picture) if picture else None)


def folder_of(path: str, given: Path | None) -> Path:
    """Return where a model's own files are: beside the config.json that the user gives, or where the script says."""
    own = given if given is not None else Path(path).expanduser()
    return own if own.is_dir() else own.parent


def _config(path: str, given: Path | None) -> tuple[dict[str, object], str]:
    """Return a model's settings, and where they come from."""
    place = given if given is not None else Path(path).expanduser()
    file = place / "config.json" if place.is_dir() else place
    if file.is_file():
        return _read(file), str(file)
    if given is not None:
        raise PlanError(
            subject=f"--model-config {given}",
            expected=_("a config.json, or a folder with one"),
            found=_("none"),
            fix=_("give the file of the model that the script trains"),
        )
    known = published(path)
    if known is None:
        raise PlanError(
            subject=_("the model {path!r}").format(path=path),
            expected=_("a folder with its config.json, or one of ") + _(", ").join(each.name for each in PUBLISHED),
            found=_("neither"),
            fix=_("give its config.json: --model-config PATH"),
        )
    return {"model_type": known.kind, **known.settings}, _("{known}, as it is published").format(known=known.name)


def _read(file: Path) -> dict[str, object]:
    try:
        read = json.loads(file.read_text())
        found = "none"
    except (OSError, ValueError) as error:
        read, found = None, str(error)
    if isinstance(read, dict) and "model_type" in read:
        return read
    raise PlanError(
        subject=str(file),
        expected=_("a model's config.json with its model_type"),
        found=found,
        fix=_("give another with --model-config"),
    )


def _take_tokenizer(place: Path, folder: Path) -> None:
    """Prefer the model's own tokenizer to the one that was made, if it is there."""
    if (place / "tokenizer_config.json").is_file():
        for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json"):
            if (place / name).is_file():
                shutil.copy(place / name, folder / name)


def picture_of(model: Model, tokens: int, share: Share) -> tuple[Picture | None, list[str]]:
    """Return the picture of each prompt, which has so many tokens, and what the user is told of it.

    Raises:
        PlanError: the model takes no pictures, or a prompt has no room for it.
    """
    if tokens and model.picture is None:
        raise PlanError(
            subject="--picture-tokens",
            expected=_("an image-text model of Qwen's"),
            found=model.source,
            fix=_("leave it out"),
        )
    shortest = min((prompt for prompt, _unused in (*share.lengths, *share.scored_lengths)), default=share.prompt)
    if tokens >= shortest:
        raise PlanError(
            subject="--picture-tokens",
            expected=_("less than the {shortest} tokens of a prompt").format(shortest=shortest),
            found=str(tokens),
            fix=_("give longer prompts, or a smaller picture"),
        )
    if model.picture is None:
        return None, []
    notes = [] if tokens else [_("prompts have no pictures in this plan: --picture-tokens gives each one")]
    return replace(model.picture, tokens=tokens), notes


def check_text_only(model: Model, tokens: int) -> None:
    """Refuse what fine-tuning is not planned with.

    Raises:
        PlanError: the model takes pictures, or there are to be some.
    """
    if tokens or model.picture is not None:
        raise PlanError(
            subject="--picture-tokens" if tokens else _("the model {source}").format(source=model.source),
            expected=_("text alone: fine-tuning with pictures is not planned yet"),
            found=_("{tokens} tokens").format(tokens=tokens) if tokens else _("an image-text model"),
            fix=_("leave it out") if tokens else _("plan the language model"),
        )


def main(arguments: list[str]) -> int:
    """Write config.json and tokenizer into the folder that the command line names, and print the model's sizes.

    The settings are those of its asked.json. The sizes are printed as JSON.
    """
    import torch
    import torch._dynamo  # torch 2.8 cannot import it under another device, as transformers would.
    import transformers

    from ..rehearse.small_model import tokenizer

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
        "largest": max(size for name, size in sizes.items() if ".experts." not in name) * _BYTES,
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
