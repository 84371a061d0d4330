"""Which versions verl's own documents, requirements and Dockerfiles name for NPUs, for each pin, with the source.

Read it as `PINS["v0.7.1"].cells[Component.TORCH_NPU].claims`: each claim has what it needs, where that is written, and
whether it counts with vLLM or with SGLang only. Documents contradict each other; all that they say is here, and the
first claim is the one to install.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .claim import A5, SGLANG, VLLM, Cell, Claim, Image, Pin, Source, parse_version
from .component import Component
from .of_1dda039b import V1DDA039B
from .of_796871d7 import V796871D7
from .of_v0_6_1 import V0_6_1
from .of_v0_7_0 import CCD7D934, V0_7_0
from .of_v0_7_1 import V0_7_1
from .of_v0_8_0 import V0_8_0
from .of_v0_9 import V0_9_0, V0_9_1

__all__ = ["A5", "PINS", "SGLANG", "VLLM", "Cell", "Claim", "Component", "Image", "Pin", "Source", "parse_version"]

PINS: Mapping[str, Pin] = MappingProxyType(
    {each.name: each for each in (V796871D7, V0_6_1, CCD7D934, V0_7_0, V0_7_1, V0_8_0, V0_9_0, V0_9_1, V1DDA039B)}
)
"""All pins, oldest first."""
