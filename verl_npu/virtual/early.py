"""Imported by `verl_npu_virtual.pth` at the start of Python, if VERL_NPU_VIRTUAL is set.

torch imports the entry points of installed packages in no fixed order. A torch_npu that came before us would find no
CANN, and `import torch` would fail.
"""

from __future__ import annotations

from .. import reporting
from ..errors import VerlNpuError

try:
    from . import expose

    expose()
except VerlNpuError as error:
    # `import verl` says it again, as an error if strict asks for one. Python itself must start.
    reporting.warn(str(error))
