"""Flash attention through transformers' NPU path: padding helpers, admission, packing, and what the path ignores.

`flash_attn` does not exist on Ascend and is never faked: a dummy in `sys.modules` breaks the checks of transformers
and vLLM. What upstream imports from it, or from transformers' NPU module, is put where it looks for it.
"""

from __future__ import annotations

from . import admission, choice, forward, imports
from .feature import attention
from .forward import AttentionSettingError
from .padding import index_first_axis, pad_input, rearrange, unpad_input

__all__ = [
    "AttentionSettingError",
    "admission",
    "attention",
    "choice",
    "forward",
    "imports",
    "index_first_axis",
    "pad_input",
    "rearrange",
    "unpad_input",
]
