"""The version of torch_npu that this package emulates: VIRTUAL_ASCEND_TORCH_NPU_VERSION."""

from __future__ import annotations

from virtual_ascend.settings import Settings as _Settings

__version__ = _Settings.read().torch_npu_version
git_version = "virtual Ascend"
