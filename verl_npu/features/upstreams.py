"""The upstreams that are patched, their own modules that patch others, and where our locks are."""

from __future__ import annotations

from ..pins import locks_folder as locks_folder
from ..registry.patch import Upstream
from ..registry.source.named import PatchModule

# `recipe` lies beside `verl` in a checkout and is in no wheel.
UPSTREAMS = (
    Upstream("verl", ("verl", "recipe")),
    Upstream("transformers", ("transformers",)),
    Upstream("hydra", ("hydra",)),
    Upstream("tensordict", ("tensordict",)),
    # In no package index: its pins are revisions of its git repository.
    Upstream("mindspeed", ("mindspeed",)),
    Upstream("vllm-ascend", ("vllm_ascend",)),
)

_GIVEN = ("is_npu_available", "is_torch_npu_available")

NPU_PATCH = PatchModule("verl.models.transformers.npu_patch", calls=("apply_npu_patches",), given=_GIVEN)
"""Upstream's own patches of transformers: by being imported, and from v0.9 on by a function that FSDP workers call."""

PATCH_MODULES = (
    NPU_PATCH,
    PatchModule("verl.utils.vllm.npu_vllm_patch", calls=("apply_npu_vllm_patches",), given=_GIVEN),
    # Of vllm-ascend's own patches, those of what verl calls in vLLM: groups, loading of weights, routed experts.
    PatchModule("vllm_ascend.patch.worker.patch_common.patch_distributed"),
    PatchModule("vllm_ascend.patch.worker.patch_distributed"),
    PatchModule("vllm_ascend.patch.worker.patch_weight_loader"),
    PatchModule("vllm_ascend.patch.worker.patch_process_weights_after_loading"),
    PatchModule("vllm_ascend.patch.worker.patch_routed_experts_capturer"),
    PatchModule("vllm_ascend.patch.worker.patch_routed_experts_capture"),
    PatchModule("vllm_ascend.patch.platform.patch_fused_moe"),
)
