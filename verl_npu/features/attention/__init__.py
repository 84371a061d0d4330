"""Flash attention on NPUs, through transformers.

The package `flash_attn` does not exist on Ascend. We put no dummy of it into `sys.modules`, because a dummy breaks the
checks of transformers and vLLM. Where upstream imports functions from `flash_attn`, or from transformers' NPU module,
we provide these functions.
"""

from __future__ import annotations

from ...registry.patch import Feature

NPU_MODULE = "transformers.integrations.npu_flash_attention"
UTILS = "transformers.modeling_flash_attention_utils"
ON_NPU = "transformers.utils:is_torch_npu_available()"
FLASH_ATTENTION = "flash_attention_2"
"""The attention implementation that upstream's workers hard-code."""

attention = Feature(
    "attention",
    "Models use the NPU's flash attention, and upstream gets the padding helpers that it expects from flash_attn.",
    after="verl.models.transformers.npu_patch",
)
