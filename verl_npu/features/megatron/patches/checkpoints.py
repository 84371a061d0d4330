"""Megatron's distributed checkpoint under a torch that is newer than the Megatron."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ....registry.source.probe import Defines, Never
from ..feature import megatron

if TYPE_CHECKING:
    from ..interfaces import AsyncRequest

__all__ = ["pass_torch_the_checkpoint_format", "written_in_torchs_format"]

_SAVE = "verl.utils.megatron.dist_checkpointing:save_dist_checkpointing"
_FORMAT = "serialization_format"


@megatron.wrap(
    _SAVE,
    why="With megatron-core 0.12 and torch 2.8 or newer, saving a checkpoint ends with TypeError: _write_item() "
    "missing 1 required positional argument: 'serialization_format'.",
    how="While a checkpoint is saved, Megatron's copy of torch's _write_item is called with torch's own format.",
    link="none: core_v0.15.3 looks at the signature, see filesystem_async.py in Megatron-LM's dist_checkpointing",
    retired_by=Never("which Megatron and which torch stand beside it is the user's choice"),
    requires=Defines(_SAVE),
)
def pass_torch_the_checkpoint_format(
    original: Callable[..., AsyncRequest | None], *args: object, **kwargs: object
) -> AsyncRequest | None:
    """Save a checkpoint. What is written later, by the request that is returned, has the format as well."""
    with written_in_torchs_format():
        request = original(*args, **kwargs)
    write = getattr(request, "async_fn", None)
    if request is None or write is None:
        return request
    return request._replace(async_fn=functools.partial(_within, write))


def _within(write: Callable[..., object], *args: object, **kwargs: object) -> object:
    with written_in_torchs_format():
        return write(*args, **kwargs)


@contextlib.contextmanager
def written_in_torchs_format() -> Iterator[None]:
    """Within this context, Megatron names torch's own format if torch asks for one and this Megatron names none."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    write = getattr(filesystem_async, "_write_item", None)
    if write is None or not _wants_format(write) or _FORMAT in inspect.getsource(filesystem_async):
        yield
        return
    from torch.distributed.checkpoint.filesystem import SerializationFormat

    filesystem_async._write_item = functools.partial(write, serialization_format=SerializationFormat.TORCH_SAVE)
    try:
        yield
    finally:
        filesystem_async._write_item = write


def _wants_format(write: Callable[..., object]) -> bool:
    parameter = inspect.signature(write).parameters.get(_FORMAT)
    return parameter is not None and parameter.default is inspect.Parameter.empty
