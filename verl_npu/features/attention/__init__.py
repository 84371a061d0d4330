"""Flash attention through transformers' NPU path.

`flash_attn` does not exist on Ascend and is never faked: a dummy in `sys.modules` breaks the checks of transformers
and vLLM. What upstream imports from it, or from transformers' NPU module, is provided where it looks for it.
"""

from __future__ import annotations

from . import flash, hard_coded  # noqa: F401  # they declare the patches
from .feature import attention

__all__ = ["attention"]
