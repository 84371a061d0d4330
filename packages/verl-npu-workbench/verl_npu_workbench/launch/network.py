"""The network interfaces of this host, and which of them reaches another host."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from verl_npu.errors import LaunchError
from verl_npu.language import gettext as _

_SIOCGIFCONF = 0x8912  # netdevice(7)
_RECORD = 40
"""Bytes of an ifreq on 64-bit Linux: 16 of the name, then a sockaddr_in."""
_MOST_BYTES = _RECORD * 1024
_ANYWHERE = "198.51.100.1"
"""An address of RFC 5737 that no host has: its route is the default route. Nothing is sent to it."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface, and its IPv4 address."""

    name: str
    address: str

    @property
    def is_loopback(self) -> bool:
        """Whether nobody else reaches it."""
        return self.address.startswith("127.")


def here() -> tuple[Interface, ...]:
    """Return the interfaces of this host that are up, one for each IPv4 address."""
    buffer = array.array("B", bytes(_MOST_BYTES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        request = struct.pack("iL", _MOST_BYTES, buffer.buffer_info()[0])
        length = int(struct.unpack("iL", fcntl.ioctl(asked.fileno(), _SIOCGIFCONF, request))[0])
    found = buffer.tobytes()
    return tuple(
        Interface(
            # A second address of an interface has a label, eth0:1.
            found[at : at + 16].split(b"\0", 1)[0].decode().partition(":")[0],
            socket.inet_ntoa(found[at + 20 : at + 24]),
        )
        for at in range(0, length, _RECORD)
    )


def named(name: str, interfaces: Sequence[Interface]) -> Interface:
    """Return the interface with this name.

    Raises:
        LaunchError: there is none, or it has no IPv4 address.
    """
    for interface in interfaces:
        if interface.name == name:
            return interface
    raise LaunchError(
        subject=f"--interface {name}",
        expected=_("an interface of this host that is up and has an IPv4 address"),
        found=_listed(interfaces),
        fix=_("correct the name, or leave it out: the one that reaches the head is found"),
    )


def resolve(host: str) -> str:
    """Return the IPv4 address of a host.

    Raises:
        LaunchError: it has none.
    """
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise LaunchError(
            subject=host,
            expected=_("the name or the IPv4 address of a host"),
            found=error.strerror or str(error),
            fix=_("correct it, or enter it in /etc/hosts"),
        ) from error


def is_here(host: str, interfaces: Sequence[Interface]) -> bool:
    """Whether a host is this one: a name that has no address here is another one's."""
    if host.partition(".")[0] == socket.gethostname().partition(".")[0]:
        return True
    try:
        address = resolve(host)
    except LaunchError:
        return False
    return address.startswith("127.") or any(interface.address == address for interface in interfaces)


def towards(address: str, interfaces: Sequence[Interface]) -> Interface:
    """Return the interface from which this host reaches an address, as the kernel routes; its own one if it is here.

    An empty address stands for anywhere. Raises LaunchError if there is no way.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            # Connecting a UDP socket only looks the route up.
            asked.connect((address or _ANYWHERE, 9))
            own = str(asked.getsockname()[0])
        except OSError as error:
            raise LaunchError(
                subject=address or _("this host"),
                expected=_("a route to it") if address else _("a route to other hosts"),
                found=_("{error}; interfaces here: {interfaces}").format(
                    error=error.strerror, interfaces=_listed(interfaces)
                ),
                fix=_("bring the interface up, or name it with --interface"),
            ) from error
    for interface in interfaces:
        if interface.address == own:
            return interface
    raise LaunchError(
        subject=address,
        expected=_("an interface with {address}").format(address=own),
        found=_listed(interfaces),
        fix=_("use --interface"),
    )


def _listed(interfaces: Sequence[Interface]) -> str:
    return ", ".join(f"{each.name} ({each.address})" for each in interfaces) or _("none")
