"""What is found out and checked on a host before anything is started on it."""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from subprocess import DEVNULL

from .. import ports
from ..doctor import Finding, Verdict
from ..doctor.cluster import read
from ..errors import LaunchError
from ..family import Family
from ..interruption import Interruptions
from . import npus, settings
from .interface import Interface, here, is_here, named, resolve, towards
from .party import Party, party_of
from .request import Request

__all__ = ["Prepared", "examine", "prepare", "refusal"]

_DOCTOR = 300.0
"""Seconds for the doctor, who reads files only."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A host that is ready to take part."""

    request: Request
    party: Party
    interface: Interface
    name: str
    npus: int
    environ: Mapping[str, str]
    """What processes are started with."""
    added: Mapping[str, str]
    """What of it the user has not set."""
    head: str
    """The address of the head."""

    @property
    def address(self) -> str:
        """Where Ray's control service is."""
        return f"{self.head}:{self.request.port}"


def prepare(request: Request, environ: Mapping[str, str]) -> Prepared:
    """Look at this host. Nothing is started or changed but this process's limits. Raises LaunchError."""
    interfaces = here()
    party = party_of(request.asked, environ, interfaces)
    settings.check_interfaces(environ, interfaces)
    if party.is_head:
        own = _of_head(request, party, interfaces)
        head = own.address
        taken = ports.why_taken("", request.port)
        if taken:
            raise LaunchError(
                subject=f"port {request.port} of this host",
                expected="a free port for Ray",
                found=taken,
                fix="give all nodes another one with --port; the other launch or Ray on this host is not touched",
            )
    else:
        head = resolve(party.head)
        own = named(request.interface, interfaces) if request.interface else towards(head, interfaces)
        if own.is_loopback:
            raise LaunchError(
                subject=f"the head {party.head}",
                expected="an address that this host reaches over a network",
                found=f"{head}, which is this host",
                fix="correct the name's entry in /etc/hosts, or give the address with --head",
            )
    count = npus.count(environ, request.npus)
    added = settings.variables(environ, own, alone=party.most == 1)
    # Another Ray that the user's shell points to is none of this launch.
    kept = {
        name: value for name, value in environ.items() if name not in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR")
    }
    settings.raise_limits()
    return Prepared(request, party, own, socket.gethostname(), count, {**kept, **added}, added, head)


def _of_head(request: Request, party: Party, interfaces: tuple[Interface, ...]) -> Interface:
    """Return the interface at which the others find the head."""
    if request.interface:
        return named(request.interface, interfaces)
    address = resolve(party.head) if party.head else ""
    if address and not address.startswith("127."):
        for interface in interfaces:
            if interface.address == address:
                return interface
    if party.most == 1:
        try:
            return towards("", interfaces)
        except LaunchError:
            return towards("127.0.0.1", interfaces)
    # Debian's /etc/hosts gives a host's own name 127.0.1.1.
    others = [host for host in party.hosts if not is_here(host, interfaces)]
    return towards(resolve(others[0]) if others else "", interfaces)


def examine(prepared: Prepared, family: Family, interruptions: Interruptions) -> list[Finding]:
    """Let the doctor look at this host at his static level. Raises Interrupted, FleetError."""
    command = [sys.executable, "-m", "verl_npu", "doctor", "--json"]
    with tempfile.TemporaryFile() as output:
        member = family.start(command, prepared.environ, output, stderr=DEVNULL)
        interruptions.until(lambda: member.process.poll() is not None, _DOCTOR)
        output.seek(0)
        return read(output.read().decode(errors="replace"), prepared.name)


def refusal(findings: list[Finding]) -> str:
    """Return the doctor's errors in one line; empty if there is none."""
    errors = [finding for finding in findings if finding.verdict is Verdict.ERROR]
    return "; ".join(f"{each.name}: {each.found} (needed: {each.needed}; {each.fix})" for each in errors)
