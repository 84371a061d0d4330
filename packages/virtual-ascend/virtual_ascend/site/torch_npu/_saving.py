"""How a tensor of an NPU is saved: with its format, as in torch_npu 2.7.1 and newer.

`torch.load(..., weights_only=True)` of torch 2.7 and older refuses such a file, since it does not allow the enum of
formats. A newer torch does, so that nothing needs to be done there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from packaging.version import Version

from torch_npu._unimplemented import is_older_than
from torch_npu.npu._format import Format

__all__ = ["install"]

Rebuild = Callable[..., object]


def _rebuild_npu_tensor(rebuild: Rebuild, arguments: tuple[object, ...], _format: Format) -> object:
    return rebuild(*arguments)


def install() -> None:
    """Have tensors of NPUs saved with their format, if that makes a difference."""
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
