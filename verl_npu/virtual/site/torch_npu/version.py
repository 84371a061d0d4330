"""Which torch_npu this pretends to be: VERL_NPU_VIRTUAL_TORCH_NPU_VERSION."""

from __future__ import annotations

from verl_npu.virtual.settings import Settings

__version__ = Settings.read().torch_npu_version
git_version = "virtual Ascend"
