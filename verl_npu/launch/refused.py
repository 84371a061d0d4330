"""A node that cannot take part, and tells the head, which would wait for it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from ..errors import LaunchError
from ..interruption import Interrupted, Interruptions
from . import meeting
from .board import Board, Member, NoAnswer, Opening
from .interface import here, resolve, towards
from .party import Party, party_of
from .request import Request

__all__ = ["tell"]

_LONGEST = 180.0
"""Seconds that a head that was started at the same time may need until it answers."""
_LOOK = 1.0


def tell(
    request: Request,
    environ: Mapping[str, str],
    refusal: LaunchError,
    interruptions: Interruptions,
    say: Callable[[str], None],
) -> int:
    """Say why this node cannot take part, here and to the head, and return the exit status.

    Raises the refusal again where nobody waits for this node: on the head, or if this host knows of no other one.
    """
    # Over ssh the end of this process tells the head, with what was printed.
    found = None if request.attached else _head_of(request, environ)
    if found is None:
        raise refusal
    party, head, address = found
    limit = min(request.wait, _LONGEST)
    say(str(refusal))
    say(f"telling the head {head}:{request.port} as soon as it answers, for {limit:g} s at most; Ctrl-C ends this")

    def told() -> bool:
        opening = meeting.opening(board, head, request.port)
        if opening is None:
            return False
        if opening == Opening(request.command, party.needed, party.most):
            name = meeting.free_name(board, party, socket.gethostname(), address)
            board.tell(Member(name, address, 0, state="refused", reason=str(refusal)))
        return True

    try:
        board = Board(f"{head}:{request.port}", request.grace, interruptions.pause)
        if not interruptions.until(told, limit, every=_LOOK):
            say("the head has not answered")
    except (Interrupted, LaunchError, NoAnswer) as reason:
        say(f"the head was not told: {reason}")
    return 2


def _head_of(request: Request, environ: Mapping[str, str]) -> tuple[Party, str, str] | None:
    """Return who takes part, the head's address, and that of this host on the way there."""
    interfaces = here()
    try:
        party = party_of(request.asked, environ, interfaces)
        if party.is_head:
            return None
        head = resolve(party.head)
        own = towards(head, interfaces)
    except LaunchError:
        # That is why this host is refused, or comes on top of it.
        return None
    return None if own.is_loopback else (party, head, own.address)
