"""The head as another node meets it: which launch it leads, and the name by which this node takes part."""

from __future__ import annotations

from .. import ports
from ..errors import LaunchError
from .board import Board, NoAnswer, Opening
from .party import Party

__all__ = ["free_name", "opening"]


def opening(board: Board, host: str, port: int) -> Opening | None:
    """Return which launch the head leads; None if it does not answer yet. Raises what ends the board's waiting."""
    if not ports.listens(host, port):
        return None
    try:
        return board.opening()
    except NoAnswer:
        return None


def free_name(board: Board, party: Party, name: str, address: str) -> str:
    """Return the name of this node, which nobody else who is there has. Raises LaunchError if there is no room."""
    # One that was just lost, perhaps this very host, is alive to Ray for a while.
    alive = {node.name for node in board.nodes() if node.alive and ports.listens(node.address, node.port)}
    if len(alive) >= party.most:
        raise LaunchError(
            subject="this node",
            expected=f"one of the {party.most} of the launch at {board.address}",
            found=f"all of them there already: {', '.join(sorted(alive))}",
            fix="give another launch another --port, or raise --spare on all nodes",
        )
    # Containers often share a name.
    return f"{name}-{address}" if name in alive else name
