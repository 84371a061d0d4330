"""`acl.rt`, the runtime part."""

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
    """(number of NPUs that this process sees, return code)."""
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
    """Copy `count` bytes between addresses, of the host or an NPU: a virtual NPU's memory is the host's.

    A phantom takes all and gives zeros; large memory of the host that is to hold a phantom's content is left as it is.

    Returns:
        The return code: invalid parameters for more bytes than there is room for, as in CANN, and a failure for memory
        of an engine that sleeps.
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
            # An engine that sleeps keeps its weights in fresh memory, which would become real by being cleared.
            if count < device.phantom():
                ctypes.memset(dst, 0, count)
            return ACL_SUCCESS
    ctypes.memmove(dst, src, count)
    return ACL_SUCCESS
