"""A launch on this host, from its checks to the end of all that it started."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..doctor import Finding
from ..errors import LaunchError, VerlNpuError
from ..family import Family
from ..interruption import Interrupted, Interruptions
from . import head, refused, worker
from .board import End, NoAnswer
from .preparation import Prepared, examine, prepare, refusal
from .request import Request

__all__ = ["launch"]


def launch(request: Request, environ: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Take part in a launch, and return the exit status; whatever happens, nothing that was started here stays.

    Raises VerlNpuError for what the user can mend.
    """
    with Interruptions() as interruptions:
        try:
            prepared = prepare(request, environ)
        except LaunchError as refusal:
            return refused.tell(request, environ, refusal, interruptions, say)
        family = Family()
        try:
            end = _take_part(prepared, family, interruptions, say)
            say(f"{'done' if end.status == 0 else 'FAILED'}: {end.reason} (status {end.status})")
            return end.status
        except Interrupted as interrupted:
            say(f"ended by {interrupted}")
            return interrupted.status
        finally:
            left = family.end(request.grace, lambda: interruptions.impatient)
            if left:
                say(f"WARNING: these processes cannot be ended: {', '.join(map(str, left))}")


def _take_part(prepared: Prepared, family: Family, interruptions: Interruptions, say: Callable[[str], None]) -> End:
    findings: list[Finding] = []
    if prepared.request.doctor:
        try:
            findings = examine(prepared, family, interruptions)
        except VerlNpuError as error:
            say(f"WARNING: the doctor did not answer: {error}")
    if not prepared.party.is_head:
        try:
            return worker.run(prepared, findings, family, interruptions, say)
        except NoAnswer as silence:
            return End(1, f"the head at {prepared.address} does not answer any more: {silence}")
    errors = refusal(findings)
    if errors:
        raise LaunchError(
            subject="this node", expected="no error of the doctor", found=errors, fix="mend it, or say --no-doctor"
        )
    return head.run(prepared, findings, family, interruptions, say)
