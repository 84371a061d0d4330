"""Saves NPU tensors with their storage format, as torch_npu 2.7.1 and later does.

A tensor in FRACTAL_NZ is saved by its values, and loaded in ND. In torch 2.7 and older, `torch.load(...,
weights_only=True)` rejects the enum of formats, so the enum must be declared safe. Newer versions allow it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from packaging.version import Version
from virtual_ascend.device.extension import extension

from torch_npu._unimplemented import is_older_than
from torch_npu.npu._format import Format

__all__ = ["install"]

Rebuild = Callable[..., object]


def _rebuild_npu_tensor(rebuild: Rebuild, arguments: tuple[object, ...], _format: Format) -> object:
    return rebuild(*arguments)


def install() -> None:
    """Make torch save the values of FRACTAL_NZ tensors in ND. With torch_npu 2.7.1 and later, also make torch save the
    storage format of NPU tensors."""
    plain = torch.Tensor.__reduce_ex__

    def of_values(self: torch.Tensor, protocol: int) -> tuple[object, ...]:
        if type(self) is torch.Tensor and self.device.type == "npu" and extension().is_fractal(self):
            self = self.detach().clone()
        reduced: tuple[object, ...] = plain(self, protocol)
        return reduced

    torch.Tensor.__reduce_ex__ = of_values
    if is_older_than("2.7.1") or Version(torch.__version__).release >= (2, 8):
        return
    reduce = torch.Tensor.__reduce_ex__

    def with_format(self: torch.Tensor, protocol: int) -> tuple[object, ...]:
        reduced: tuple[object, ...] = reduce(self, protocol)
        if type(self) is not torch.Tensor or self.device.type != "npu":
            return reduced
        return _rebuild_npu_tensor, (*reduced[:2], Format.ND)

    torch.serialization.add_safe_globals([_rebuild_npu_tensor, Format])
    torch.Tensor.__reduce_ex__ = with_format
