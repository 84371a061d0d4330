"""torchair of the virtual Ascend, as far as MindSpeed's operators register converters with it on import.

There is no graph mode here: a converter is taken down and never run, and whatever would build a graph raises.
"""

from __future__ import annotations

from torchair import ge
from torchair._ge_concrete_graph.fx2ge_converter import register_fx_node_ge_converter

__all__ = ["ge", "register_fx_node_ge_converter"]
