"""The AscendCL bindings that Ray and vllm-ascend use.

Ray asks for the number and the name of the NPUs. vllm-ascend copies the weights of a sleeping engine.
"""

from __future__ import annotations

from virtual_ascend.soc import NAME

from . import rt

__all__ = ["finalize", "get_soc_name", "init", "rt"]


def init(config: str | None = None) -> int:
    """Return success: there is nothing to initialise."""
    return rt.ACL_SUCCESS


def finalize() -> int:
    """Return success: there is nothing to release."""
    return rt.ACL_SUCCESS


def get_soc_name() -> str:
    """Return the name of the chip."""
    return NAME
