"""The triton kernels of upstream's Megatron backend: loaded when one is used."""

from __future__ import annotations

import importlib.util
import sys

from ....registry.source.probe import Defines, Not
from ..feature import megatron

__all__: list[str] = []

_CALLER = "verl.utils.kernel.linear_cross_entropy"
_KERNELS = "verl.utils.kernel.kernels"


@megatron.guard(
    f"{_CALLER}:linear_cross_entropy",
    why="Importing the Megatron workers loads triton kernels, and ends with RuntimeError: 0 active drivers ([]). "
    "There should only be one., if triton has no driver for the NPU.",
    how="The kernels' module is executed when it is first used, as in later revisions of verl.",
    link="none: later revisions import the kernels within the functions that use them",
    retired_by=Not(Defines(f"{_CALLER}:kernels")),
)
def load_triton_kernels_on_first_use() -> None:
    """Put a module that loads itself on first use in the place of the kernels' module."""
    spec = None if _KERNELS in sys.modules else importlib.util.find_spec(_KERNELS)
    if spec is None or spec.loader is None:
        return
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[_KERNELS] = module
    spec.loader.exec_module(module)
    sys.modules[_KERNELS.rpartition(".")[0]].__dict__["kernels"] = module
