"""Makes the Python part of torchvision importable beside a torch that its compiled part does not fit.

PyPI's torchvision is compiled for CUDA, and virtual NPUs run on a torch without CUDA. The image and video processors
of transformers use functions of torchvision that are written in Python, but importing torchvision fails if the
operator `nms` is not declared.
"""

from __future__ import annotations

from typing import Protocol

_OPERATORS = ("nms", "qnms")
"""The second is newer. An operator that torchvision does not use does no harm."""
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# A library must live as long as the operators that it declares.
_libraries: list[object] = []


class Extension(Protocol):
    """The part of `torchvision.extension` that is used here."""

    def _has_ops(self) -> bool: ...


def declare_operators(extension: Extension) -> None:
    """Declare the operators that torchvision's import needs if its compiled part did not load. They cannot be
    called."""
    # A failed import may be tried again.
    if extension._has_ops() or _libraries:
        return
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in _OPERATORS:
        library.define(f"{name}{_SCHEMA}")
    _libraries.append(library)
