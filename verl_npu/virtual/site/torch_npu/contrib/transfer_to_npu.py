"""Importing this on a real NPU turns every `cuda` into `npu`, for every library, for good. Not implemented."""

from __future__ import annotations

raise NotImplementedError("torch_npu.contrib.transfer_to_npu is not implemented by the virtual Ascend")
