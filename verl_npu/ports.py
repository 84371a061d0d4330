"""Ports of this host: whether one can be listened at, which ones are free, and whether somebody answers at one."""

from __future__ import annotations

import socket

__all__ = ["free", "listens", "why_taken"]

_PATIENCE = 2.0
"""Seconds for a connection."""


def why_taken(host: str, port: int) -> str:
    """Return why nobody can listen at a port of this host, in the system's words; empty if it is free.

    `host` is one of its addresses, or empty for all of them.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


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
