"""A rollout and a teacher for `recipe.gkd`, which upstream at ccd7d934 cannot run on any device.

The recipe needs `rollout.mode=sync`, which upstream removed two days before it added the recipe
(https://github.com/volcengine/verl/issues/4464). verl imports this package in each process through
VERL_USE_EXTERNAL_MODULES.
"""

from __future__ import annotations

from types import ModuleType

from wrapt import when_imported


@when_imported("verl.workers.rollout.base")
def _register(base: ModuleType) -> None:
    base._ROLLOUT_REGISTRY.setdefault(("vllm", "sync"), f"{__name__}.rollout.VLLMInProcess")
