"""The AscendCL bindings that Ray and vllm-ascend use.

Ray reads the number and the name of the NPUs. vllm-ascend copies the weights of a sleeping engine.
"""

from __future__ import annotations

from virtual_ascend.soc import NAME

from . import rt

__all__ = ["finalize", "get_soc_name", "init", "rt"]


def init(config: str | None = None) -> int:
    """Return success, because there is nothing to initialize."""
    return rt.ACL_SUCCESS


def finalize() -> int:
    """Return success, because there is nothing to release."""
    return rt.ACL_SUCCESS


def get_soc_name() -> str:
    """Return the name of the chip."""
    return NAME
