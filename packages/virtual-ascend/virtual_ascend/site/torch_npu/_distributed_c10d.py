"""`torch_npu._C._distributed_c10d`: the options of a process group of NPUs.

The virtual hccl uses only the timeout, which it gets directly from c10d.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

__all__ = ["ProcessGroupHCCL"]


class _Options:
    """`ProcessGroupHCCL.Options`: programs create an instance, set its attributes, and pass it as `pg_options`."""

    # MindSpeed looks at the class to find out whether groups can be configured.
    __slots__ = (
        "_hccl_config",
        "_timeout",
        "global_ranks_in_group",
        "group_id",
        "is_high_priority_stream",
        "op_timeout",
    )

    backend = "hccl"

    def __init__(self) -> None:
        self.is_high_priority_stream = False
        self.global_ranks_in_group: list[int] = []
        self.group_id = ""
        self._timeout = timedelta(minutes=30)
        self.op_timeout = timedelta(seconds=10)
        self._hccl_config: dict[str, int | str] = {}

    @property
    def hccl_config(self) -> dict[str, int | str]:
        """A copy of the communicator's settings, such as the buffer size, as a mapping from names to values. torch_npu
        has the same property."""
        return dict(self._hccl_config)

    @hccl_config.setter
    def hccl_config(self, settings: Mapping[str, int | str]) -> None:
        for name, value in settings.items():
            if not isinstance(name, str) or not isinstance(value, int | str):
                raise TypeError(
                    f"hccl_config: expected a mapping from names to numbers or strings, but got {name!r}: {value!r}"
                )
        self._hccl_config = dict(settings)


class ProcessGroupHCCL:
    """A class that exists only so that programs can access `ProcessGroupHCCL.Options`. The process groups themselves
    are instances of a class of c10d."""

    Options = _Options
