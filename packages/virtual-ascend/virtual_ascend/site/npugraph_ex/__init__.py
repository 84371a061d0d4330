"""virtual-ascend's npugraph_ex, the compiler for FX graphs that is part of torch_npu 2.10 and later.

With `force_eager`, which vllm-ascend sets, it functionalizes a graph, replaces patterns in it, and then runs its
operators one by one. The wheel's own graphs and kernels are not implemented.
"""

from __future__ import annotations

from torch_npu._unimplemented import is_older_than

if is_older_than("2.10.0"):
    raise ModuleNotFoundError("No module named 'npugraph_ex'", name="npugraph_ex")

from npugraph_ex.configs.compiler_config import CompilerConfig
from npugraph_ex.npu_fx_compiler import compile_fx, get_compiler, get_npu_backend
from npugraph_ex.patterns.pattern_pass_manager import register_replacement

__all__ = ["CompilerConfig", "compile_fx", "get_compiler", "get_npu_backend", "register_replacement"]
