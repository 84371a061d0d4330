"""Imported by `verl_npu_virtual.pth` at the start of Python, if VERL_NPU_VIRTUAL is set.

torch imports the entry points of installed packages in no fixed order. A torch_npu that came before us would find no
CANN, and `import torch` would fail.
"""

from __future__ import annotations

import contextlib

from ..errors import VerlNpuError

# Python itself must start. Activation meets the same error, and says it.
with contextlib.suppress(VerlNpuError):
    from . import expose

    expose()
