"""The patch of verl's preparation of a vLLM model for new weights."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ....registry.source.probe import Defines, Never
from ..engines.processing import (
    Model,
    refresh_copies_on_load,
    refuse_disposed_projections,
    refuse_square_experts,
)
from ..feature import weight_sync

_WORKERS = "verl.workers.rollout.vllm_rollout.utils"
_LOADER = "verl.utils.vllm.patch:patch_vllm_moe_model_weight_loader"


# Every sync into a vLLM model, of verl-npu or of upstream, calls this target first, at all pins.
@weight_sync.wrap(
    _LOADER,
    why="vllm-ascend keeps copies of MLA's kv_b_proj, which go stale in a sync, and cannot tell if a square expert "
    "weight is transposed. The model then generates with wrong weights, without an error.",
    how="The copies are made anew in place whenever kv_b_proj is loaded, and transposed square experts are refused "
    "before anything is loaded.",
    link="none: nobody seems to have reported it; one recipe of verl's, r1_ascend, makes the copies anew by itself",
    retired_by=Never("it is vllm-ascend's doing, and which version is installed is not seen from verl's source"),
    requires=Defines(_LOADER),
)
def prepare_vllm_model_for_new_weights(original: Callable[[Model], object], model: Model) -> object:
    """Prepare a vLLM model for a sync. Raises EngineError if a sync would garble its weights."""
    refuse_square_experts(model, laid_out_before_load=_processes_after_each_sync())
    refuse_disposed_projections(model)
    refresh_copies_on_load(model)
    return original(model)


def _processes_after_each_sync() -> bool:
    """Return whether this verl processes the weights after each sync, and so has experts laid out before it."""
    extension = getattr(sys.modules.get(_WORKERS), "vLLMColocateWorkerExtension", None)
    return hasattr(extension, "update_weights_from_ipc")
