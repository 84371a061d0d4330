"""Ports of this host: whether one is free, and which one is."""

from __future__ import annotations

import socket

from ..errors import LaunchError

__all__ = ["check_free", "free", "listens"]

_PATIENCE = 2.0
"""Seconds for a connection."""


def check_free(port: int) -> None:
    """Raise LaunchError if somebody on this host listens at a port."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError as error:
            raise LaunchError(
                subject=f"port {port} of this host",
                expected="a free port for Ray",
                found=error.strerror or str(error),
                fix="give all nodes another one with --port; the other launch or Ray on this host is not touched",
            ) from error


def free(count: int) -> list[int]:
    """Return different ports that are free now."""
    opened = [socket.socket() for _ in range(count)]
    try:
        for each in opened:
            each.bind(("", 0))
        return [int(each.getsockname()[1]) for each in opened]
    finally:
        for each in opened:
            each.close()


def listens(address: str, port: int) -> bool:
    """Whether somebody answers at a port of a host."""
    try:
        with socket.create_connection((address, port), _PATIENCE):
            return True
    except OSError:
        return False
