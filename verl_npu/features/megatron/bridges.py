"""mbridge as it is on PyPI, where upstream was written against its repository."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...registry.source.probe import Mentions
from .feature import megatron

__all__ = ["save_through_bridge"]

_SAVE = "verl.utils.checkpoint.megatron_checkpoint_manager:MegatronCheckpointManager.save_checkpoint"


@megatron.wrap(
    _SAVE,
    why="the newest mbridge on PyPI, which upstream's Ascend documents install, has no distributed_filesystem, and is "
    "memory_efficient only for a model of several files: saving one in Hugging Face's format ends with an error",
    how="while a checkpoint is saved, the bridge is given those of upstream's options that it can follow",
    link="https://github.com/volcengine/verl/pull/4386",
    retired_by=Mentions(_SAVE, "signature"),
    requires=Mentions(_SAVE, "distributed_filesystem"),
)
def save_through_bridge(original: Callable[..., None], manager: Any, *args: Any, **kwargs: Any) -> None:
    """Save, with a bridge that is asked for no more than it can do."""
    bridge = manager.bridge
    save = getattr(bridge, "save_weights", None)
    if save is None:
        return original(manager, *args, **kwargs)
    can = set(inspect.signature(save).parameters)
    if not getattr(getattr(bridge, "safetensor_io", None), "index", None):
        can.discard("memory_efficient")

    def known(models: Any, weights_path: str, **options: Any) -> Any:
        return save(models, weights_path, **{name: value for name, value in options.items() if name in can})

    bridge.save_weights = known
    try:
        return original(manager, *args, **kwargs)
    finally:
        del bridge.save_weights
