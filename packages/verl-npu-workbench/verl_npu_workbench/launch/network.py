"""The addresses of this host, and its routes to others."""

from __future__ import annotations

import fcntl
import socket
import struct

from verl_npu.errors import LaunchError
from verl_npu.language import gettext as _


def refused(subject: str, expected: str, found: str, fix: str) -> LaunchError:
    """Return the error for a launch that is refused. If `expected` is empty, `found` must be a complete sentence."""
    return LaunchError(subject=subject, expected=expected, found=found, fix=fix)


def here() -> dict[str, str]:
    """Return the IPv4 address of each network interface of this host, by the interface's name."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _number, name in socket.if_nameindex():
            try:
                # SIOCGIFADDR of netdevice(7)
                found[name] = socket.inet_ntoa(fcntl.ioctl(asked, 0x8915, struct.pack("40s", name.encode()))[20:24])
            except OSError:
                continue  # the interface has no address
    return found


def resolve(host: str) -> str:
    """Return the IPv4 address of a host. Raises LaunchError if the host has no IPv4 address."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        expected, fix = (
            _("the name or the IPv4 address of a host"),
            _("correct the name, or add the host to /etc/hosts"),
        )
        raise refused(host, expected, str(error.strerror), fix) from error


def towards(host: str) -> str:
    """Return the address of this host that the kernel uses to reach another host. Raises LaunchError if there is no
    route."""
    address = resolve(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((address, 9))  # for UDP this only looks up the route
        except OSError as error:
            raise refused(host, _("a route to this host"), str(error.strerror), _("bring the interface up")) from error
        own = str(asked.getsockname()[0])
    if own.startswith("127."):
        fix = _("correct the host's entry in /etc/hosts, or specify the host's address")
        raise refused(host, _("an address that other hosts can reach"), address, fix)
    return own
