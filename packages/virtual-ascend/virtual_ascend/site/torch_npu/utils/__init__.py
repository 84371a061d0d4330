"""The part of torch_npu.utils that programs use."""

from __future__ import annotations

from torch_npu._unimplemented import leave_out, missing
from torch_npu.npu.utils import get_cann_version
from torch_npu.utils import collect_env

__all__ = ["collect_env", "get_cann_version"]

globals().update(missing("torch_npu.utils", globals()))
__all__ = leave_out("torch_npu.utils", globals(), __all__)
