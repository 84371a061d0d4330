"""A pytest plugin: vLLM gives the version that vllm-ascend compares with; its build for CPUs adds `.post2`."""

from __future__ import annotations

import vllm
from packaging.version import Version

vllm.__version__ = Version(vllm.__version__).base_version
