"""torchvision beside a torch that its compiled part was not made for: its Python part can be imported.

PyPI's torchvision is compiled for CUDA, and virtual NPUs run on a torch without it. transformers' processors of images
and videos use functions of torchvision that are written in Python; but its import ends if the operators `nms` are not
declared.
"""

from __future__ import annotations

from typing import Protocol

_OPERATORS = ("nms", "qnms")
"""The second is newer; what a torchvision does not ask for does no harm."""
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# It lives as long as the operator that it declares.
_libraries: list[object] = []


class Extension(Protocol):
    """What is used of `torchvision.extension`."""

    def _has_ops(self) -> bool: ...


def declare_operators(extension: Extension) -> None:
    """Declare what torchvision's import asks for, if its compiled part did not load. Calling it is still an error."""
    # An import that failed is tried again.
    if extension._has_ops() or _libraries:
        return
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in _OPERATORS:
        library.define(f"{name}{_SCHEMA}")
    _libraries.append(library)
