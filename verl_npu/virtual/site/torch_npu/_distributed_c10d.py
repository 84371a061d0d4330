"""`torch_npu._C._distributed_c10d`: what a group of NPUs can be told, of which the virtual hccl takes nothing."""

from __future__ import annotations

from torch_npu._unimplemented import not_implemented

__all__ = ["ProcessGroupHCCL"]


class ProcessGroupHCCL:
    """The name that programs look the options up under; groups are of c10d's own class here."""

    # No attribute hccl_config, as in a torch_npu that cannot be configured: MindSpeed then leaves groups alone.
    Options = not_implemented("torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options")
