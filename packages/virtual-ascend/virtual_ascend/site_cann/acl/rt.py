"""`acl.rt`, the runtime part of the bindings."""

from __future__ import annotations

import ctypes
import os

from virtual_ascend import configured_npus
from virtual_ascend.device import extension
from virtual_ascend.variables import VISIBLE_DEVICES

__all__ = ["ACL_ERROR_FAILURE", "ACL_ERROR_INVALID_PARAM", "ACL_SUCCESS", "get_device_count", "memcpy"]

ACL_SUCCESS = 0
ACL_ERROR_INVALID_PARAM = 100000
ACL_ERROR_FAILURE = 500000


def get_device_count() -> tuple[int, int]:
    """Return a tuple: the number of NPUs that are visible to this process, and a return code."""
    visible = os.environ.get(VISIBLE_DEVICES)
    installed = configured_npus()
    if visible is None:
        return installed, ACL_SUCCESS
    seen: list[int] = []
    for word in visible.split(","):  # the rule of device/csrc/runtime.cpp
        text = word.strip()
        if not (text.isascii() and text.isdigit()) or int(text) >= installed or int(text) in seen:
            break
        seen.append(int(text))
    return len(seen), ACL_SUCCESS


def memcpy(dst: int, dest_max: int, src: int, count: int, direction: int) -> int:
    """Copy `count` bytes between addresses on the host or on an NPU. A virtual NPU's memory is memory of the host.

    A copy to a phantom does nothing. A copy from a phantom writes zeros if `count` is less than the phantom threshold.
    A larger copy from a phantom does nothing.

    Returns:
        The return code: invalid parameter if `dest_max` is too small, as in CANN, and failure if the memory belongs to
        a sleeping engine.
    """
    if count > dest_max or not dst or not src:
        return ACL_ERROR_INVALID_PARAM
    if extension.is_loaded():
        device = extension.extension()
        try:
            for address in (dst, src):
                device.check_mapped(address)
        except RuntimeError:
            return ACL_ERROR_FAILURE
        if device.is_phantom_address(dst):
            return ACL_SUCCESS
        if device.is_phantom_address(src):
            # A sleeping engine keeps its weights in new host memory. Clearing it would make the system allocate it.
            if count < device.phantom():
                ctypes.memset(dst, 0, count)
            return ACL_SUCCESS
    ctypes.memmove(dst, src, count)
    return ACL_SUCCESS
