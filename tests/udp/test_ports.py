"""Source ports are chosen at random among those that are free and not dropped on sight."""

import errno
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mrc.errors import ConfigError, LocalError
from mrc.udp import SendSocket, choose_ports, family_of, probe_caps
from mrc.udp.ports import PORT_HIGH, PORT_LOW, REFLECTION_PORTS


@pytest.fixture
def row(address: str) -> Iterator[tuple[int, list[int]]]:
    """The first of six ports in a row, two of them in use, and a list of the four that are free."""
    family = family_of(address)
    for low in range(40_000, 60_000, 6):
        with ExitStack() as stack:
            try:
                sockets = [
                    stack.enter_context(socket.socket(family, socket.SOCK_DGRAM)) for _ in range(6)
                ]
                for offset, sock in enumerate(sockets):
                    sock.bind((address, low + offset))
            except OSError:
                continue
            for offset in (0, 2, 4, 5):
                sockets[offset].close()
            yield low, [low, low + 2, low + 4, low + 5]
            return
    pytest.skip("no six free ports in a row")


def test_ports_are_different_and_within_the_range(address: str) -> None:
    """Each EV gets a port of its own out of the range, and can bind it."""
    ports = choose_ports(address, 32, random.Random(1))
    assert len(set(ports)) == 32
    assert all(PORT_LOW <= port <= PORT_HIGH for port in ports)
    for port in ports:
        SendSocket(address, port, caps=probe_caps(family_of(address))).close()


def test_ports_in_use_are_skipped(address: str, row: tuple[int, list[int]]) -> None:
    """A range that is just wide enough is used to the last free port."""
    low, free = row
    assert sorted(choose_ports(address, 4, random.Random(1), low, low + 5)) == free


def test_the_order_follows_the_generator(address: str, row: tuple[int, list[int]]) -> None:
    """The same seed chooses the same ports; another seed, sooner or later, others."""
    low, _ = row

    def choose(seed: int) -> list[int]:
        return choose_ports(address, 4, random.Random(seed), low, low + 5)

    assert choose(1) == choose(1)
    assert len({tuple(choose(seed)) for seed in range(20)}) > 1


def test_a_range_without_enough_free_ports_is_an_error(
    address: str, row: tuple[int, list[int]]
) -> None:
    """The error names the range, how many were needed, and how many were free."""
    low, _ = row
    with pytest.raises(LocalError, match=f"5 UDP ports.*{low}-{low + 5} has 4 free") as caught:
        choose_ports(address, 5, random.Random(1), low, low + 5)
    assert caught.value.errno == errno.EADDRINUSE


def test_ports_of_reflection_attacks_are_never_chosen() -> None:
    """A port that peers drop on sight is left out even if it is the only one."""
    assert 11211 in REFLECTION_PORTS
    with pytest.raises(LocalError, match="0 free"):
        choose_ports("127.0.0.1", 1, random.Random(1), 11211, 11211)


def test_the_default_range_holds_no_port_of_reflection_attacks() -> None:
    """The whole default range can be used."""
    assert not [port for port in REFLECTION_PORTS if PORT_LOW <= port <= PORT_HIGH]


def test_an_address_of_another_machine_says_so() -> None:
    """When the address is the trouble, the error is not about ports."""
    with pytest.raises(LocalError, match=r"cannot bind UDP 192\.0\.2\.1") as caught:
        choose_ports("192.0.2.1", 1, random.Random(1))
    assert caught.value.errno == errno.EADDRNOTAVAIL


@pytest.mark.parametrize(("count", "low", "high"), [(1, 0, 9), (1, 9, 8), (1, 1, 65536), (0, 1, 9)])
def test_ranges_and_counts_without_sense_are_refused(count: int, low: int, high: int) -> None:
    """The caller's mistakes are named as such."""
    with pytest.raises(ConfigError):
        choose_ports("127.0.0.1", count, random.Random(1), low, high)
