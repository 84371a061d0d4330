"""mbridge as it is on PyPI, where upstream was written against its repository."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...registry.probe import Mentions
from .declared import megatron

__all__ = ["save_through_bridge"]

_SAVE = "verl.utils.checkpoint.megatron_checkpoint_manager:MegatronCheckpointManager.save_checkpoint"


@megatron.wrap(
    _SAVE,
    why="the newest mbridge on PyPI, which upstream's Ascend documents install, has no distributed_filesystem: saving "
    "a model in Hugging Face's format ends with a TypeError",
    how="while a checkpoint is saved, the bridge is given those of upstream's options that it takes",
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
    parameters = inspect.signature(save).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())

    def known(models: Any, weights_path: str, **options: Any) -> Any:
        return save(models, weights_path, **{k: v for k, v in options.items() if takes_all or k in parameters})

    bridge.save_weights = known
    try:
        return original(manager, *args, **kwargs)
    finally:
        del bridge.save_weights
