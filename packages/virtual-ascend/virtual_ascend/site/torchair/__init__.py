"""The names of torchair that MindSpeed's operators and vllm-ascend need on import.

There is no graph mode: converters are accepted and never run, and functions that would build a graph raise.
"""

from __future__ import annotations

from torch_npu._unimplemented import not_implemented

from torchair import ge, scope
from torchair._ge_concrete_graph.fx2ge_converter import register_fx_node_ge_converter

__all__ = ["CompilerConfig", "ge", "get_npu_backend", "patch_for_hcom", "register_fx_node_ge_converter", "scope"]

CompilerConfig = not_implemented("torchair.CompilerConfig")
get_npu_backend = not_implemented("torchair.get_npu_backend")
patch_for_hcom = not_implemented("torchair.patch_for_hcom")
