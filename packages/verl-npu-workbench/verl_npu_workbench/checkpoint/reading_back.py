"""Whether a merged model on disk is what the shards hold: names, shapes, dtypes and every value."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_npu import progress
from verl_npu.errors import CheckpointError
from verl_npu.language import gettext as _

_ADAPTER = "lora_adapter/adapter_model.safetensors"
_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class Compared:
    """What was compared, all of it equal."""

    tensors: int
    values: int
    shard_dtypes: tuple[str, ...]
    dtypes: tuple[str, ...]
    """Upstream rounds to bfloat16, whatever the shards hold."""
    tied: tuple[str, ...]
    """Names that the model leaves out because another tensor is the same one."""
    renamed: tuple[tuple[str, str], ...]
    """Tensors that transformers saves under another name: the shards' name, and the model's."""


def compare(folder: Path, expected: Mapping[str, Callable[[], Any]]) -> Compared:
    """Compare each tensor of the model in `folder` with the one that the shards make.

    Values are equal bit by bit after the shards' are rounded to the model's dtype, which has to be bfloat16 or the
    shards' own.

    Raises:
        CheckpointError: the model differs from the shards.
    """
    tensors = dict(_tensors(folder))
    pairs, tied, renamed = _paired(folder, tensors, expected)
    values, before, after = 0, set(), set()
    with progress.step(_("comparing the merged model with the shards"), total=len(pairs), unit="tensors") as comparing:
        for name, other in pairs.items():
            whole, merged = expected[name](), tensors[other]()
            _judge(folder, name, whole, merged)
            values += merged.numel()
            before.add(_dtype(whole))
            after.add(_dtype(merged))
            comparing.done += 1
    return Compared(len(pairs), values, tuple(sorted(before)), tuple(sorted(after)), tied, renamed)


def _tensors(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    from safetensors import SafetensorError, safe_open

    files = [*sorted(folder.glob("*.safetensors")), *folder.glob(_ADAPTER)]
    if not files:
        found = _(", ").join(sorted(each.name for each in folder.iterdir())) or _("an empty folder")
        raise _refusal(folder, _("a model in safetensors"), found)
    seen: dict[str, Path] = {}
    for path in files:
        try:
            opened: Any = safe_open(path, framework="pt", device="cpu")
            names = [str(name) for name in opened.keys()]  # noqa: SIM118 - it is no mapping
        except (SafetensorError, OSError) as error:
            raise _refusal(folder, _("{path} that can be read").format(path=path.name), str(error)) from error
        for name in names:
            if name in seen:
                raise _refusal(
                    folder,
                    _("{name} in one file").format(name=name),
                    _("it in {seen} and {path}").format(seen=seen[name].name, path=path.name),
                )
            seen[name] = path
            yield name, _reader(opened, name)


def _reader(opened: Any, name: str) -> Callable[[], Any]:
    return lambda: opened.get_tensor(name)


def _paired(
    folder: Path, tensors: Mapping[str, Callable[[], Any]], expected: Mapping[str, Callable[[], Any]]
) -> tuple[dict[str, str], tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return which tensor of the model is which of the shards, those that are left out, and those that are renamed."""
    pairs = {name: name for name in expected if name in tensors}
    lacking = [name for name in expected if name not in tensors]
    odd = [name for name in tensors if name not in expected]
    renamed = []
    for name in list(lacking):
        # transformers moves a module's prefix; what stands at a name's end stays.
        likely = sorted((each for each in odd if _ending(each, name) > 1), key=lambda each: -_ending(each, name))
        same = next((each for each in likely if _same(tensors[each](), expected[name]())), None)
        if same is not None:
            pairs[name] = same
            renamed.append((name, same))
            lacking.remove(name)
            odd.remove(same)
    tied = tuple(name for name in lacking if _is_tied(folder, name, expected))
    lacking = [name for name in lacking if name not in tied]
    if lacking or odd:
        said = [_("{name} left out").format(name=name) for name in lacking] + [
            _("{name} that no shard has").format(name=name) for name in odd
        ]
        more = _(" and {count} more").format(count=len(said) - 3) if said[3:] else ""
        raise _refusal(folder, _("the tensors of the shards and no others"), f"{', '.join(said[:3])}{more}")
    return pairs, tied, tuple(renamed)


def _ending(one: str, other: str) -> int:
    """Return how many parts of two names are the same, from their ends."""
    pairs = zip(reversed(one.split(".")), reversed(other.split(".")), strict=False)
    return sum(1 for _unused in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _is_tied(folder: Path, name: str, expected: Mapping[str, Callable[[], Any]]) -> bool:
    """Whether a name is the output layer of a model whose input layer is the same tensor."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config") or config
    if not name.endswith(_HEAD) or not (config.get("tie_word_embeddings") or text.get("tie_word_embeddings")):
        return False
    return any(each.endswith(_EMBEDDING) and _same(expected[each](), expected[name]()) for each in expected)


def _judge(folder: Path, name: str, whole: Any, merged: Any) -> None:
    import torch

    if whole.shape != merged.shape:
        raise _refusal(
            folder,
            _("{name} with the shape {shape}").format(name=name, shape=tuple(whole.shape)),
            f"{tuple(merged.shape)}",
        )
    if merged.dtype not in (whole.dtype, torch.bfloat16):
        raise _refusal(
            folder, _("{name} in {dtype} or bfloat16").format(name=name, dtype=_dtype(whole)), _dtype(merged)
        )
    if not _same(merged, whole):
        count = int((whole.to(merged.dtype) != merged).sum())
        raise _refusal(
            folder,
            _("{name} with the shards' values").format(name=name),
            _("{count} of {numel} that differ").format(count=count, numel=merged.numel()),
        )


def _same(one: Any, other: Any) -> bool:
    """Whether two tensors are equal in shape and bits, the second rounded to the first one's dtype."""
    import torch

    rounded = other.to(one.dtype)
    return bool(one.shape == other.shape and torch.equal(_bits(one), _bits(rounded)))


def _bits(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().flatten().view(torch.uint8)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _refusal(folder: Path, expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        subject=_("the model that verl merged into {folder}").format(folder=folder),
        expected=expected,
        found=found,
        fix=_("it was thrown away; verl's merger at this revision does not fit this checkpoint"),
    )
