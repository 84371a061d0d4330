"""Makes the Python part of torchvision importable with a torch that does not fit torchvision's compiled part.

PyPI's torchvision is compiled for CUDA, and virtual NPUs run on a torch without CUDA. The image and video processors
of transformers use functions of torchvision that are written in Python, but importing torchvision fails if the
operator `nms` is not declared.
"""

from __future__ import annotations

from typing import Protocol

_OPERATORS = ("nms", "qnms")
"""The operators to declare. `qnms` exists only in newer versions. Declaring an operator that torchvision does not use
does no harm."""
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# A library must live as long as the operators that it declares.
_libraries: list[object] = []


class Extension(Protocol):
    """The part of `torchvision.extension` that is used here."""

    def _has_ops(self) -> bool: ...


def declare_operators(extension: Extension) -> None:
    """Declare the operators that torchvision needs when it is imported, if its compiled part was not loaded. The
    declared operators cannot be called."""
    # A failed import may be tried again.
    if extension._has_ops() or _libraries:
        return
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in _OPERATORS:
        library.define(f"{name}{_SCHEMA}")
    _libraries.append(library)
