"""The function that vllm-ascend calls to register ATB's operators before it compiles them."""

from __future__ import annotations

__all__: list[str] = []


def _register_atb_extensions() -> None:
    """Do nothing: `import torch_npu` has registered ATB's operators."""
