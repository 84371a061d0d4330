"""How long HCCL waits by itself, as its environment variables say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CONNECT", "EXECUTION", "Timeouts"]

CONNECT = "HCCL_CONNECT_TIMEOUT"
"""How many seconds the ranks of a communicator may take to connect."""

EXECUTION = "HCCL_EXEC_TIMEOUT"
"""How many seconds a collective may take on the NPU; 0 means without end."""

_USUAL = {CONNECT: 120.0, EXECUTION: 1836.0}  # as HCCL documents them


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The times in seconds."""

    connect: float
    execution: float
    """Infinite if HCCL never gives up."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Timeouts:
        """Read them. What is no number counts as not set: HCCL itself refuses it."""
        return cls(_seconds(CONNECT, environment), _seconds(EXECUTION, environment) or float("inf"))


def _seconds(name: str, environment: Mapping[str, str]) -> float:
    try:
        value = float(environment.get(name, ""))
    except ValueError:
        return _USUAL[name]
    return value if 0 <= value < float("inf") else _USUAL[name]
