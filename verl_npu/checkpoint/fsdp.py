"""FSDP's shards, read without upstream's merger, so that its result can be judged by them."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .layout import Layout
from .naming import of_adapters
from .npu_names import allow_npu_names
from .placement import assemble

__all__ = ["whole_tensors"]


def whole_tensors(layout: Layout) -> Mapping[str, Callable[[], Any]]:
    """Return each tensor's name in Hugging Face's format, and what puts it together.

    Raises:
        CheckpointError: a shard holds something else than tensors, or other tensors than the rest.
    """
    loaded = [_load(path) for path in layout.shards]
    names = list(loaded[0])
    for path, shard in zip(layout.shards[1:], loaded[1:], strict=True):
        odd = sorted(set(names) ^ set(shard))
        if odd:
            raise CheckpointError(
                subject=str(path),
                expected=f"the tensors that {layout.shards[0].name} has",
                found=f"{len(odd)} that are in one of them alone, {odd[0]} the first",
                fix="take the shards of one save",
            )
    return {of_adapters(name): partial(_whole, name, loaded) for name in names}


def _whole(name: str, loaded: list[dict[str, Any]]) -> Any:
    return assemble(name, [shard[name] for shard in loaded])


def _load(path: Path) -> dict[str, Any]:
    import torch

    # It warns that there are no process groups for the mesh, which nobody asks for here.
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    # It registers what a DTensor is made of with torch.load.
    import torch.distributed.tensor

    allow_npu_names()
    try:
        # Nothing of a shard is executed, and it stays on disk until a tensor of it is read.
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [repr(error)])[0]
        raise CheckpointError(
            subject=str(path),
            expected="tensors and DTensors, as FSDP saves them",
            found=first,
            fix="merge it where it was saved, with the torch that saved it",
        ) from error
    if not isinstance(loaded, dict):
        raise CheckpointError(
            subject=str(path), expected="a table of tensors", found=type(loaded).__name__, fix="copy the shard again"
        )
    return {str(name): tensor for name, tensor in loaded.items()}
