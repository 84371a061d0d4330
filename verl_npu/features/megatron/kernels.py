"""The triton kernels of upstream's Megatron backend: loaded where one is used, not where a module is imported."""

from __future__ import annotations

import importlib.util
import sys

from ...registry.source.probe import Defines, Not
from .feature import megatron

__all__: list[str] = []

_CALLER = "verl.utils.kernel.linear_cross_entropy"
_KERNELS = "verl.utils.kernel.kernels"


@megatron.guard(
    f"{_CALLER}:linear_cross_entropy",
    why="importing the Megatron workers compiles triton kernels, and a triton without its driver raises then",
    how="the kernels' module is executed at its first use, as later revisions do",
    link="none: later revisions import the kernels within the functions that use them",
    retired_by=Not(Defines(f"{_CALLER}:kernels")),
)
def kernels_when_used() -> None:
    """Put a module that loads itself on first use in the kernels' place."""
    spec = None if _KERNELS in sys.modules else importlib.util.find_spec(_KERNELS)
    if spec is None or spec.loader is None:
        return
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[_KERNELS] = module
    spec.loader.exec_module(module)
    sys.modules[_KERNELS.rpartition(".")[0]].__dict__["kernels"] = module
