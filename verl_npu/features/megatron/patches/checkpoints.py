"""Megatron's distributed checkpoint under a torch that is newer than the Megatron."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ....registry.source.probe import Defines, Never
from ..feature import megatron

if TYPE_CHECKING:
    from ..interfaces import AsyncRequest

__all__ = ["let_the_converter_write_in_torchs_format", "pass_torch_the_checkpoint_format", "written_in_torchs_format"]

_SAVE = "verl.utils.megatron.dist_checkpointing:save_dist_checkpointing"
_MODEL = "verl.utils.megatron_utils:get_model"
_CONVERTER = "converter_hf_to_mcore.py"
_FORMAT = "serialization_format"
_ERROR = "TypeError: _write_item() missing 1 required positional argument: 'serialization_format'."
_LINK = "none: core_v0.15.3 looks at the signature, see filesystem_async.py in Megatron-LM's dist_checkpointing"
_NEVER = Never("which Megatron and which torch stand beside it is the user's choice")

Result = TypeVar("Result")


@megatron.wrap(
    _SAVE,
    why=f"With megatron-core 0.12 and torch 2.8 or newer, saving a checkpoint ends with {_ERROR}",
    how="While a checkpoint is saved, Megatron's copy of torch's _write_item is called with torch's own format.",
    link=_LINK,
    retired_by=_NEVER,
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


@megatron.wrap(
    _MODEL,
    why="With megatron-core 0.12 and torch 2.8 or newer, converter_hf_to_mcore.py, which saves by itself, ends with "
    f"{_ERROR}",
    how="A process that runs that program writes in torch's own format, from its first model on.",
    link=_LINK,
    retired_by=_NEVER,
    requires=Defines(_MODEL),
)
def let_the_converter_write_in_torchs_format(
    original: Callable[..., Result], *args: object, **kwargs: object
) -> Result:
    """Return the model. The converter calls nothing else of verl's before it saves, and ends afterwards."""
    if Path(getattr(sys.modules["__main__"], "__file__", None) or "").name == _CONVERTER:
        _give_format()
    return original(*args, **kwargs)


def _within(write: Callable[..., object], *args: object, **kwargs: object) -> object:
    with written_in_torchs_format():
        return write(*args, **kwargs)


@contextlib.contextmanager
def written_in_torchs_format() -> Iterator[None]:
    """Within this context, Megatron names torch's own format if torch asks for one and this Megatron names none."""
    take_back = _give_format()
    try:
        yield
    finally:
        take_back()


def _give_format() -> Callable[[], None]:
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    write = getattr(filesystem_async, "_write_item", None)
    if write is None or not _wants_format(write) or _FORMAT in inspect.getsource(filesystem_async):
        return lambda: None
    from torch.distributed.checkpoint.filesystem import SerializationFormat

    filesystem_async._write_item = functools.partial(write, serialization_format=SerializationFormat.TORCH_SAVE)
    return lambda: setattr(filesystem_async, "_write_item", write)


def _wants_format(write: Callable[..., object]) -> bool:
    parameter = inspect.signature(write).parameters.get(_FORMAT)
    return parameter is not None and parameter.default is inspect.Parameter.empty
