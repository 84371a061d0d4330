"""Saving through the mbridge on PyPI; upstream was written for a newer one, in mbridge's repository."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from ....registry.source.probe import Mentions
from ..feature import megatron

if TYPE_CHECKING:
    from ..interfaces import CheckpointManager

__all__ = ["drop_save_options_unknown_to_mbridge"]

_SAVE = "verl.utils.checkpoint.megatron_checkpoint_manager:MegatronCheckpointManager.save_checkpoint"


@megatron.wrap(
    _SAVE,
    why="With the mbridge on PyPI, saving a model ends with TypeError: save_weights() got an unexpected keyword "
    "argument 'distributed_filesystem'. memory_efficient fails for a model in a single file.",
    how="While a checkpoint is saved, only the options that the installed mbridge can follow are passed to it.",
    link="https://github.com/volcengine/verl/pull/4386",
    retired_by=Mentions(_SAVE, "signature"),
    requires=Mentions(_SAVE, "distributed_filesystem"),
)
def drop_save_options_unknown_to_mbridge(
    original: Callable[..., object], manager: CheckpointManager, *args: object, **kwargs: object
) -> object:
    """Save a checkpoint, with a bridge that gets no option that it cannot follow."""
    bridge = manager.bridge
    save = getattr(bridge, "save_weights", None)
    if bridge is None or save is None:
        return original(manager, *args, **kwargs)
    can = set(inspect.signature(save).parameters)
    if not getattr(getattr(bridge, "safetensor_io", None), "index", None):
        can.discard("memory_efficient")

    def known(models: object, weights_path: str, **options: object) -> object:
        return save(models, weights_path, **{name: value for name, value in options.items() if name in can})

    bridge.save_weights = known
    try:
        return original(manager, *args, **kwargs)
    finally:
        del bridge.save_weights
