"""Addresses are checked once, before they reach a socket."""

import socket

import pytest

from mrc.errors import ConfigError
from mrc.udp import family_of, local_address, peer_address


def test_family_is_read_from_the_digits() -> None:
    """The family of a socket follows from its address."""
    assert family_of("10.0.0.1") == socket.AF_INET
    assert family_of("fd00::1") == socket.AF_INET6


def test_ipv4_is_a_pair_and_ipv6_has_flow_info_and_scope() -> None:
    """Socket addresses have the shape that Python's sockets take."""
    assert local_address("10.0.0.1", 5) == ("10.0.0.1", 5)
    assert local_address("fd00::1", 5) == ("fd00::1", 5, 0, 0)


def test_a_scope_becomes_an_interface_index() -> None:
    """A link-local address keeps its interface, as a number that needs no look-up per send."""
    assert local_address("fe80::1%lo", 5) == ("fe80::1", 5, 0, socket.if_nametoindex("lo"))
    assert local_address("fe80::1%7", 5) == ("fe80::1", 5, 0, 7)


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("localhost", "digits"),
        ("", "digits"),
        ("fe80::1", "link-local"),
        ("fe80::1%nosuchlink", "no interface"),
        ("::ffff:10.0.0.1", r"write 10\.0\.0\.1"),
    ],
)
def test_addresses_that_would_fail_or_go_astray_later_are_refused(
    address: str, complaint: str
) -> None:
    """Names, IPv4 in disguise and link-local addresses without interface never reach a socket."""
    with pytest.raises(ConfigError, match=complaint):
        local_address(address, 5)


def test_ports_out_of_range_are_refused() -> None:
    """A port has sixteen bits, and a peer's is never 0."""
    with pytest.raises(ConfigError, match="65536"):
        local_address("127.0.0.1", 65536)
    assert local_address("127.0.0.1", 0) == ("127.0.0.1", 0)
    with pytest.raises(ConfigError, match="port 0"):
        peer_address("127.0.0.1", 0)
