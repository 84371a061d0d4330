"""npugraph_ex of the virtual Ascend: the compiler for FX graphs that torch_npu brings from 2.10 on.

With `force_eager`, as vllm-ascend has it, a graph is functionalized, patterns are replaced in it, and then its
operators run one by one. What the wheel does besides, graphs and kernels of its own, is not there.
"""

from __future__ import annotations

from torch_npu._unimplemented import is_older_than

if is_older_than("2.10.0"):
    raise ModuleNotFoundError("No module named 'npugraph_ex'", name="npugraph_ex")

from npugraph_ex.configs.compiler_config import CompilerConfig
from npugraph_ex.npu_fx_compiler import compile_fx, get_compiler, get_npu_backend
from npugraph_ex.patterns.pattern_pass_manager import register_replacement

__all__ = ["CompilerConfig", "compile_fx", "get_compiler", "get_npu_backend", "register_replacement"]
