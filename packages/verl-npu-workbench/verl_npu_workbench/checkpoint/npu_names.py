"""The device `npu` by its name, where there is no torch_npu."""

from __future__ import annotations


def allow_npu_names() -> None:
    """Let this process's torch read `npu:0`.

    Shards that were saved on NPUs name them, even though their values are read to the host; without torch_npu torch
    ends with "Expected one of cpu, cuda, …". The name alone brings no device up.
    """
    import torch

    try:
        torch.device("npu")
    except RuntimeError:
        torch.utils.rename_privateuse1_backend("npu")
