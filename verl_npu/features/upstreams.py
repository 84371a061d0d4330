"""The upstreams that verl-npu patches, and those of their modules that patch other packages."""

from __future__ import annotations

from ..pins import locks_folder as locks_folder
from ..registry.patch import Upstream
from ..registry.source.named import PatchModule

# `recipe` is beside `verl` in a checkout. No wheel contains it.
UPSTREAMS = (
    Upstream("verl", ("verl", "recipe")),
    Upstream("transformers", ("transformers",)),
    Upstream("hydra", ("hydra",)),
    Upstream("tensordict", ("tensordict",)),
    # MindSpeed is in no package index: its pins are revisions of its git repository.
    Upstream("mindspeed", ("mindspeed",)),
    Upstream("vllm-ascend", ("vllm_ascend",)),
)

_GIVEN = ("is_npu_available", "is_torch_npu_available")

NPU_PATCH = PatchModule("verl.models.transformers.npu_patch", calls=("apply_npu_patches",), given=_GIVEN)
"""verl's own patches of transformers. Importing the module applies them; from v0.9 on, FSDP workers call a function
instead."""

PATCH_MODULES = (
    NPU_PATCH,
    PatchModule("verl.utils.vllm.npu_vllm_patch", calls=("apply_npu_vllm_patches",), given=_GIVEN),
    # The patches of vllm-ascend that change what verl calls in vLLM: groups, loading of weights, and routed experts.
    PatchModule("vllm_ascend.patch.worker.patch_common.patch_distributed"),
    PatchModule("vllm_ascend.patch.worker.patch_distributed"),
    PatchModule("vllm_ascend.patch.worker.patch_weight_loader"),
    PatchModule("vllm_ascend.patch.worker.patch_process_weights_after_loading"),
    PatchModule("vllm_ascend.patch.worker.patch_routed_experts_capturer"),
    PatchModule("vllm_ascend.patch.worker.patch_routed_experts_capture"),
    PatchModule("vllm_ascend.patch.platform.patch_fused_moe"),
)
