"""What a host is given before a job starts on it: variables that verl's documents ask for, and its limits."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence

from ..ascend.variables import HCCL_INTERFACE, ON_EVERY_HOST
from ..doctor import Site
from ..doctor.variables import RULES
from ..errors import LaunchError
from .interface import Interface

__all__ = ["check_interfaces", "raise_limits", "variables"]

_NAMES = ("GLOO_SOCKET_IFNAME", HCCL_INTERFACE, "TP_SOCKET_IFNAME")
_ADDRESS = "HCCL_IF_IP"
_MOST_FILES = 1 << 20
"""Programs that close all files that they might have open take minutes with more."""


def variables(environ: Mapping[str, str], interface: Interface, alone: bool) -> dict[str, str]:
    """Return the variables that are set on this host: those of the documents that the user has not set.

    On a host that is alone no interface is chosen.
    """
    wanted = {advice.name: advice.value for advice in ON_EVERY_HOST}
    if not alone:
        # HCCL takes a name for the beginning of names unless = stands before it; Gloo takes it as it is.
        wanted |= {HCCL_INTERFACE: f"={interface.name}", _NAMES[0]: interface.name, _ADDRESS: interface.address}
        if environ.get(HCCL_INTERFACE):
            # The address would come before the user's interface.
            del wanted[_ADDRESS]
    return {name: value for name, value in wanted.items() if not environ.get(name)}


def check_interfaces(environ: Mapping[str, str], interfaces: Sequence[Interface]) -> None:
    """Raise LaunchError if a variable of the user names an interface or an address that this host does not have."""
    site = Site.here(None, None)
    for rule in RULES:
        text = environ.get(rule.name, "")
        trouble = rule.judge(text, site) if text and rule.name in _NAMES else ""
        if rule.name == _ADDRESS and text and text not in {each.address for each in interfaces}:
            trouble = f"no address of this host; here are {', '.join(each.address for each in interfaces)}"
        if trouble:
            raise LaunchError(
                subject=f"{rule.name}={text}",
                expected=rule.needed,
                found=trouble,
                fix=f"unset {rule.name} on this host, and it is chosen, or correct it",
            )


def raise_limits() -> None:
    """Raise this process's soft limits of open files and processes as far as it may; what it starts inherits them."""
    for kind, most in ((resource.RLIMIT_NOFILE, _MOST_FILES), (resource.RLIMIT_NPROC, resource.RLIM_INFINITY)):
        soft, hard = resource.getrlimit(kind)
        wanted = hard
        if most != resource.RLIM_INFINITY and not 0 <= hard <= most:
            wanted = most
        if soft != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or wanted > soft):
            resource.setrlimit(kind, (wanted, hard))
