"""The AscendCL bindings of the virtual Ascend, as far as Ray looks: how many NPUs there are, and what they are
called."""

from __future__ import annotations

import os

from verl_npu.ascend.soc import NAME
from verl_npu.ascend.variables import VISIBLE_DEVICES
from verl_npu.virtual import device_count_configured

ACL_SUCCESS = 0


class rt:
    """`acl.rt`, the runtime part."""

    @staticmethod
    def get_device_count() -> tuple[int, int]:
        """(number of NPUs that this process sees, return code)."""
        visible = os.environ.get(VISIBLE_DEVICES)
        installed = device_count_configured()
        if visible is None:
            return installed, ACL_SUCCESS
        seen: list[int] = []
        for word in visible.split(","):  # the rule of device/csrc/runtime.cpp
            text = word.strip()
            if not (text.isascii() and text.isdigit()) or int(text) >= installed or int(text) in seen:
                break
            seen.append(int(text))
        return len(seen), ACL_SUCCESS


def init(config: str | None = None) -> int:
    """Initialise; there is nothing to do."""
    return ACL_SUCCESS


def finalize() -> int:
    """Release everything; there is nothing to do."""
    return ACL_SUCCESS


def get_soc_name() -> str:
    """The chip's name."""
    return NAME
