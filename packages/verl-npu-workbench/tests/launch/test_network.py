"""The interfaces of this host, and the ways to others."""

from __future__ import annotations

import pytest
from verl_npu_workbench.launch.network import Interface, here, is_here, named, resolve, towards

from verl_npu.errors import LaunchError

LOOPBACK = Interface("lo", "127.0.0.1")


def test_this_host_has_a_loopback() -> None:
    assert LOOPBACK in here()
    assert LOOPBACK.is_loopback


def test_a_host_reaches_itself_over_the_interface_with_its_address() -> None:
    for interface in here():
        assert towards(interface.address, here()).address == interface.address


def test_an_interface_is_found_by_its_name() -> None:
    assert named("lo", here()) == LOOPBACK


def test_an_interface_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(LaunchError, match=r"eth7.* found lo \(127.0.0.1\)"):
        named("eth7", (LOOPBACK,))


def test_a_name_that_nobody_has_is_refused() -> None:
    with pytest.raises(LaunchError, match="the name or the IPv4 address of a host"):
        resolve("nobody.invalid")


@pytest.mark.parametrize(("host", "answer"), [("127.0.0.1", True), ("10.9.8.7", True), ("10.9.8.6", False)])
def test_a_host_is_this_one_by_its_address(host: str, answer: bool) -> None:
    assert is_here(host, (LOOPBACK, Interface("eth0", "10.9.8.7"))) is answer
