"""Replaces the library that vllm-ascend compiles against CANN.

That library has two parts. The first is the allocator for sleep mode, which the virtual device also has
(device/csrc/pool.cpp). The second is a set of operators. The operators that vllm-ascend's experts need are in
operators/of_vllm_ascend.py. vllm-ascend works without the other operators, as it does in builds that omit them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import TYPE_CHECKING

from . import imports

if TYPE_CHECKING:
    from .device.extension import Handle

_LIBRARY, _OPERATORS = "vllm_ascend.vllm_ascend_C", "vllm_ascend.meta_registration"
_ASKS = "vllm_ascend.ops.layernorm"


def stand_in() -> None:
    """Make this process import virtual-ascend's allocator instead of vllm-ascend's compiled library."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        imports.after(_ASKS, _ask_for_operators)


def _ask_for_operators(module: ModuleType) -> None:
    # vllm-ascend checks this at the first call of a layer, and keeps the result. If Dynamo traces that call, it
    # rejects the failing import.
    ask = getattr(module, "enable_custom_op", None)
    if ask is not None:
        ask()


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname in (_LIBRARY, _OPERATORS) else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == _OPERATORS:
            # This module registers the shapes of vllm-ascend's operators. If it fails, vllm-ascend uses none of them.
            raise ImportError("vllm-ascend's own operators are not implemented for virtual NPUs")
        from .device.extension import extension

        _register_operators()
        device = extension()

        def init_module(malloc: Callable[[Handle], None], free: Callable[[int], Handle]) -> None:
            device.set_pool_callbacks(malloc, free)

        def python_create_and_map(_number: int, _size: int, data: int, _handle: int) -> None:
            device.map_memory(data)

        def python_unmap_and_release(_number: int, _size: int, data: int, _handle: int) -> None:
            device.unmap_memory(data)

        functions = (init_module, python_create_and_map, python_unmap_and_release)
        vars(module).update({function.__name__: function for function in functions})


def _register_operators() -> None:
    from .operators import of_vllm_ascend
    from .settings import Settings

    try:
        release = metadata.version("vllm-ascend")
    except metadata.PackageNotFoundError:
        # A folder on the path: vLLM does not find it as a platform, so nothing can be served.
        return
    of_vllm_ascend.register(release, Settings.read().torch_npu_version)
