"""What `recipe.gkd` is given beside upstream at ccd7d934, where it runs on no device: a rollout and its teacher.

The recipe asks for `rollout.mode=sync`, which upstream had taken out two days before the recipe came in
(https://github.com/volcengine/verl/issues/4464). Imported by verl in each process, by VERL_USE_EXTERNAL_MODULES.
"""

from __future__ import annotations

from types import ModuleType

from wrapt import when_imported


@when_imported("verl.workers.rollout.base")
def _register(base: ModuleType) -> None:
    base._ROLLOUT_REGISTRY.setdefault(("vllm", "sync"), f"{__name__}.rollout.VLLMInProcess")
