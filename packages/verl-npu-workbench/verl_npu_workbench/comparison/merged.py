"""Compares a merged model with the shards of its checkpoint: names, shapes, dtypes, and the bits of every value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from verl_npu import progress
from verl_npu.errors import SourceError
from verl_npu.language import gettext as _

from . import fsdp_shards, megatron_shards
from .fsdp_shards import bits

_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"
Tensors = dict[str, Callable[[], Any]]


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of comparing a merged model with its shards."""

    tensors: int
    values: int
    shard_dtypes: tuple[str, ...]
    dtypes: tuple[str, ...]
    """The dtypes of the merged model. Upstream's merger rounds to bfloat16, whatever dtype the shards have."""
    tied: tuple[str, ...]
    """Names of tensors that are not saved in the merged model because they are tied to another tensor."""
    renamed: Mapping[str, str]
    """The tensors that transformers saves under another name: from the name in the shards to the name in the model."""
    differences: Mapping[str, str]
    """A description of the difference, for each tensor that differs."""


def compare(model: Path, checkpoint: Path) -> Merged:
    """Compare each tensor of a merged model with the tensor that is assembled from the checkpoint's shards, rounded to
    the model's dtype.

    Raises:
        SourceError: the model or the checkpoint cannot be read.
    """
    left = dict(_tensors(model))
    values, before, after = 0, set(), set()
    count, tied, renamed, differences = 0, [], {}, {}
    with progress.step(_("comparing the merged model with the shards"), total=len(left), unit="tensors") as comparing:
        for name, whole in _shards(checkpoint):
            own = name if name in left else _moved(name, whole, left)
            if own is None and _is_tied(model, name, whole):
                tied.append(name)
            elif own is None:
                differences[name] = _("missing in the model")
            else:
                merged = left.pop(own)()
                if why := _difference(whole, merged):
                    differences[own] = why
                if own != name:
                    renamed[name] = own
                count, values = count + 1, values + merged.numel()
                before.add(_dtype(whole))
                after.add(_dtype(merged))
                comparing.done += 1
    differences |= dict.fromkeys(left, _("missing in the shards"))
    return Merged(count, values, tuple(sorted(before)), tuple(sorted(after)), tuple(tied), renamed, differences)


def _shards(checkpoint: Path) -> Iterator[tuple[str, Any]]:
    if (checkpoint / fsdp_shards.CONFIG).is_file():
        return fsdp_shards.tensors(checkpoint)
    # Since July 2026 verl writes the model into the second folder, beside the optimizer's.
    for folder in (checkpoint, checkpoint / "model"):
        if (folder / "dist_ckpt").is_dir():
            return megatron_shards.tensors(folder / "dist_ckpt", folder / "huggingface" / "config.json")
    raise SourceError(
        subject=str(checkpoint),
        expected=_("a folder with fsdp_config.json (FSDP) or dist_ckpt (Megatron)"),
        found=_("a folder that contains neither"),
        fix=_("specify the folder that was the merger's --local_dir, for example CHECKPOINTS/global_step_100/actor"),
    )


def _tensors(model: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    from safetensors import SafetensorError, safe_open

    files = [*sorted(model.glob("*.safetensors")), *model.glob("lora_adapter/*.safetensors")]
    found = _("no *.safetensors")
    try:
        for path in files:
            opened: Any = safe_open(path, framework="pt", device="cpu")
            for name in opened.keys():  # noqa: SIM118 - it is not a mapping
                yield name, partial(opened.get_tensor, name)
    except (SafetensorError, OSError) as error:
        files, found = [], f"{path.name}: {error}"
    if not files:
        raise SourceError(
            subject=str(model),
            expected=_("a merged model in safetensors format"),
            found=found,
            fix=_("merge again with python -m verl.model_merger merge"),
        )


def _moved(name: str, whole: Any, left: Tensors) -> str | None:
    """Return the merged model's name for this tensor: the name that has equal values and the same ending. transformers
    may have changed the prefix of the name."""
    likely = sorted(((_ending(each, name), each) for each in left), reverse=True)
    return next((each for same, each in likely if same > 1 and not _difference(whole, left[each]())), None)


def _ending(one: str, other: str) -> int:
    pairs = zip(reversed(one.split(".")), reversed(other.split(".")), strict=False)
    return sum(1 for _unused in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _is_tied(model: Path, name: str, whole: Any) -> bool:
    """Return whether a tensor is the output layer of a model whose output layer is tied to the input embedding."""
    if not name.endswith(_HEAD) or not _settings(model).get("tie_word_embeddings"):
        return False
    return any(not _difference(whole, read()) for each, read in _tensors(model) if each.endswith(_EMBEDDING))


def _settings(model: Path) -> Mapping[str, Any]:
    path = model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return {**config, **(config.get("text_config") or {})}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SourceError(
            subject=str(path),
            expected=_(
                "the configuration of the merged model, which shows whether the model is allowed to omit the weight "
                "{head}"
            ).format(head=_HEAD),
            found=getattr(error, "strerror", None) or str(error),
            fix=_("merge again with python -m verl.model_merger merge"),
        ) from error


def _difference(whole: Any, merged: Any) -> str:
    """Describe the difference between the tensor from the shards and the merged model's tensor. Return an empty string
    if the tensors are equal."""
    import torch

    if whole.shape != merged.shape:
        return _("the shape is {found} instead of {shape}").format(found=tuple(merged.shape), shape=tuple(whole.shape))
    if merged.dtype not in (whole.dtype, torch.bfloat16):
        return _("the dtype is {found} instead of {dtype} or bfloat16").format(
            found=_dtype(merged), dtype=_dtype(whole)
        )
    count = int((bits(whole.to(merged.dtype)) != bits(merged)).any(dim=1).sum())
    return _("{count} of {values} values differ").format(count=count, values=merged.numel()) if count else ""


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
