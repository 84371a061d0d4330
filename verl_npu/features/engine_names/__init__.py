"""The names of vLLM and vllm-ascend that verl-npu relies on, and whether a source has them."""

from __future__ import annotations

from .name import Form, Name
from .of_layers import LAYERS
from .of_start import START
from .of_vllm import VLLM
from .of_vllm_ascend import VLLM_ASCEND
from .search import Found, Lack, accepts, find, lacks

__all__ = ["DOCUMENTED", "NAMES", "Form", "Found", "Lack", "Name", "accepts", "find", "lacks"]

NAMES: tuple[Name, ...] = (*VLLM, *LAYERS, *VLLM_ASCEND, *START)
"""All of them."""

DOCUMENTED = {
    "796871d7": ("0.7.3", "0.7.3.post1"),
    "v0.6.1": ("0.9.1", "0.9.1"),
    "ccd7d934": ("0.11.0", "0.11.0rc1"),
    "v0.7.0": ("0.11.0", "0.11.0rc1"),
    "v0.7.1": ("0.13.0", "0.13.0"),
    "v0.8.0": ("0.18.0", "0.18.0"),
    "v0.9.0": ("0.23.0", "0.23.0"),
    "v0.9.1": ("0.23.0", "0.23.0"),
    "1dda039b": ("0.23.0", "0.23.0"),
}
"""The releases of vLLM and of vllm-ascend that verl's documents for NPUs name at each pin."""
