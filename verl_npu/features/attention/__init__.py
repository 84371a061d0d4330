"""Flash attention through transformers' NPU path.

`flash_attn` does not exist on Ascend and is never faked: a dummy in `sys.modules` breaks the checks of transformers
and vLLM. What upstream imports from it, or from transformers' NPU module, is provided where it looks for it.
"""

from __future__ import annotations

from ...registry.patch import Feature

NPU_MODULE = "transformers.integrations.npu_flash_attention"
UTILS = "transformers.modeling_flash_attention_utils"
ON_NPU = "transformers.utils:is_torch_npu_available()"
FLASH_ATTENTION = "flash_attention_2"
"""The implementation of attention that upstream's workers have hard-coded."""

attention = Feature(
    "attention",
    "Models use the NPU's flash attention, and upstream finds the padding helpers of flash_attn.",
    after="verl.models.transformers.npu_patch",
)
