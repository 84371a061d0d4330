"""The feature that the modules beside this one declare their patches on."""

from __future__ import annotations

from ...registry.patch import Feature

__all__ = ["NPU_MODULE", "UTILS", "attention"]

NPU_MODULE = "transformers.integrations.npu_flash_attention"
UTILS = "transformers.modeling_flash_attention_utils"

attention = Feature(
    "attention",
    "flash attention and its padding helpers, through transformers' NPU path",
    after="verl.models.transformers.npu_patch",
)
