"""Checks that the tensors of a call are on one NPU, as torch_npu's operators require."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch


def check_devices(operator: str, given: Mapping[str, object]) -> None:
    """Check the tensors among the arguments of an operator.

    Raises:
        NotImplementedError: none of them is on an NPU.
        RuntimeError: they are on several devices.
    """
    found = {tensor.device: name for name, value in given.items() for tensor in _tensors(value)}
    if all(device.type == "cpu" for device in found):
        raise NotImplementedError(
            f"Could not run 'npu::{operator}' with arguments from the 'CPU' backend: it runs on NPUs only"
        )
    if len(found) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in found.items())
        raise RuntimeError(f"{operator}: expected all tensors to be on the same device, but got {places}")


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
