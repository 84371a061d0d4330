"""The AscendCL bindings of the virtual Ascend, as far as Ray looks, how many NPUs there are and what they are called,
and as vllm-ascend copies the weights of an engine that sleeps."""

from __future__ import annotations

from virtual_ascend.soc import NAME

from . import rt

__all__ = ["finalize", "get_soc_name", "init", "rt"]


def init(config: str | None = None) -> int:
    """Initialise; there is nothing to do."""
    return rt.ACL_SUCCESS


def finalize() -> int:
    """Release everything; there is nothing to do."""
    return rt.ACL_SUCCESS


def get_soc_name() -> str:
    """The chip's name."""
    return NAME
