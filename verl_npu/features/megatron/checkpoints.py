"""Megatron's distributed checkpoint, under a torch that is newer than the Megatron."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ...registry.source.probe import Defines, Never
from .feature import megatron

__all__ = ["written_in_torchs_format"]

_SAVE = "verl.utils.megatron.dist_checkpointing:save_dist_checkpointing"
_FORMAT = "serialization_format"


@megatron.wrap(
    _SAVE,
    why="torch 2.8, which v0.7.1's Ascend image has, wants a format from who writes an item; Megatron 0.12 gives none",
    how="while a checkpoint is saved, Megatron's copy of torch's function gives torch's own format",
    link="none: core_v0.15.3 looks at the signature, see filesystem_async.py in Megatron-LM's dist_checkpointing",
    retired_by=Never("which Megatron and which torch stand beside it is the user's choice"),
    requires=Defines(_SAVE),
)
def save(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Save, with a `_write_item` that this Megatron can call; what is left to be written later has it as well."""
    with written_in_torchs_format():
        request = original(*args, **kwargs)
    if getattr(request, "async_fn", None) is None:
        return request
    return request._replace(async_fn=functools.partial(_within, request.async_fn))


def _within(write: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with written_in_torchs_format():
        return write(*args, **kwargs)


@contextlib.contextmanager
def written_in_torchs_format() -> Iterator[None]:
    """Within, what Megatron writes has torch's format where torch asks for one and Megatron does not name it."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    write = getattr(filesystem_async, "_write_item", None)
    if write is None or not _asks(write) or _FORMAT in inspect.getsource(filesystem_async):
        yield
        return
    from torch.distributed.checkpoint.filesystem import SerializationFormat

    filesystem_async._write_item = functools.partial(write, serialization_format=SerializationFormat.TORCH_SAVE)
    try:
        yield
    finally:
        filesystem_async._write_item = write


def _asks(write: Callable[..., Any]) -> bool:
    wanted = inspect.signature(write).parameters.get(_FORMAT)
    return wanted is not None and wanted.default is inspect.Parameter.empty
