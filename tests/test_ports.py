"""Ports: taken ones are told with the system's reason, and free ones are different."""

from __future__ import annotations

import socket

import pytest

from verl_npu import ports


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_a_port_is_free_until_somebody_listens_there(host: str) -> None:
    with socket.socket() as other:
        other.bind((host, 0))
        port = other.getsockname()[1]
        other.listen()
        assert ports.why_taken(host, port) == "Address already in use"
        assert ports.listens("127.0.0.1", port)
    assert ports.why_taken(host, port) == ""
    assert not ports.listens("127.0.0.1", port)


def test_an_address_of_another_host_is_told_in_the_systems_words() -> None:
    # An address of RFC 5737, which no host has.
    assert ports.why_taken("198.51.100.1", 6766) == "Cannot assign requested address"


def test_free_ports_are_different() -> None:
    found = ports.free(3)
    assert len({*found}) == 3
    assert [ports.why_taken("", port) for port in found] == ["", "", ""]
