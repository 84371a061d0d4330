"""All problems that are known by their text, the more telling first where two match."""

from __future__ import annotations

from ..rule import Rule
from .attention import ATTENTION
from .communication import COMMUNICATION
from .devices import DEVICES
from .engines import ENGINES
from .installation import INSTALLATION
from .megatron import MEGATRON
from .memory import MEMORY
from .own import OWN
from .placement import PLACEMENT
from .settings import SETTINGS
from .vague import VAGUE

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    *OWN,
    *PLACEMENT,
    *COMMUNICATION,
    *MEMORY,
    *INSTALLATION,
    *ATTENTION,
    *ENGINES,
    *MEGATRON,
    *SETTINGS,
    *DEVICES,
    *VAGUE,
)
