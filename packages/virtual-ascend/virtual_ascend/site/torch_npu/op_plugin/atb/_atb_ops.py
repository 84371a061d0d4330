"""What vllm-ascend calls so that ATB's operators are registered before they are compiled."""

from __future__ import annotations

__all__: list[str] = []


def _register_atb_extensions() -> None:
    """Register ATB's operators; `import torch_npu` has done it."""
