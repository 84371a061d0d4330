"""What the steps of the head share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..family import Family
from ..interruption import Interruptions
from .board import Board
from .preparation import Prepared
from .ray_node import Node

__all__ = ["Leader"]


@dataclass(frozen=True, slots=True)
class Leader:
    """The head, with what it has started."""

    prepared: Prepared
    family: Family
    interruptions: Interruptions
    say: Callable[[str], None]
    board: Board
    ray: Node
    temp: Path
    """Ray's folder."""
    dashboard: int
    """The port of Ray's job API."""

    def alive(self) -> None:
        """Raise LaunchError if Ray has ended here."""
        self.ray.check()
