"""Interfaces and addresses: what carries what, and what the kernel says when that changes."""

import errno
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from mrc.errors import LocalError
from mrc.udp import (
    LinkChange,
    LinkMonitor,
    interface_of,
    is_up,
    link_mtu_bytes,
    link_speed_bps,
)
from mrc.udp.netlink import Address, Link, parse_messages
from tests.udp.isolation import in_new_network, ip, unprivileged
from tests.udp.pair import readable

AF_BRIDGE = 7


def link_message(kind: int, index: int, name: bytes, flags: int, family: int = 0) -> bytes:
    """A message of the kernel about an interface."""
    attribute = struct.pack("=HH", 4 + len(name) + 1, 3) + name + b"\0"
    body = struct.pack("=BxHiII", family, 1, index, flags, 0) + attribute
    body += bytes(-len(body) % 4)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def changes_until(monitor: LinkMonitor, wanted: LinkChange) -> list[LinkChange]:
    """Everything the monitor says up to and including a change that must come."""
    changes: list[LinkChange] = []
    while wanted not in changes:
        assert readable(monitor), f"never said {wanted}"
        changes += monitor.read()
    return changes


def with_cable(function: Callable[[LinkMonitor], None]) -> None:
    """Call a function in a network of its own, with a cable left-right that is plugged in."""

    def run() -> None:
        ip("link add left type veth peer name right")
        ip("link set right up")
        ip("link set left up")
        ip("address add 10.7.0.1/24 dev left")
        with closing(LinkMonitor()) as monitor:
            function(monitor)

    in_new_network(run)


def test_loopback_carries_its_whole_subnet() -> None:
    """An address that is local without being configured, as 127.0.0.2, still has its interface."""
    assert interface_of("127.0.0.1") == interface_of("127.0.0.2") == "lo"
    assert is_up("lo")


def test_a_link_local_address_names_its_own_interface() -> None:
    """The scope decides, for the same address may exist on several interfaces."""
    assert interface_of("fe80::1%lo") == "lo"


def test_an_address_of_another_machine_has_no_interface() -> None:
    """Asking for it is a local error."""
    with pytest.raises(LocalError, match=r"192\.0\.2\.1") as caught:
        interface_of("192.0.2.1")
    assert caught.value.errno == errno.EADDRNOTAVAIL


def test_an_interface_that_is_not_there_is_down_and_has_no_speed() -> None:
    """Asking about a name that does not exist is no error."""
    assert not is_up("nosuchlink")
    assert link_speed_bps("nosuchlink") is None


def test_loopback_does_not_say_how_fast_it_is() -> None:
    """No number is better than one made up."""
    assert link_speed_bps("lo") is None


def test_watching_needs_no_privileges() -> None:
    """An ordinary user hears of interfaces, and can ask for them."""

    def run() -> tuple[list[LinkChange], str]:
        with closing(LinkMonitor()) as monitor:
            return monitor.read(), interface_of("127.0.0.1")

    assert unprivileged(run) == ([], "lo")


@pytest.mark.root
def test_an_interface_switched_off_and_on_is_heard() -> None:
    """Down and up are each said once, however many messages the kernel sends of it."""

    def check(monitor: LinkMonitor) -> None:
        assert monitor.read() == []
        ip("link set left down")
        changes = changes_until(monitor, LinkChange("left", up=False))
        assert changes.count(LinkChange("left", up=False)) == 1
        assert not is_up("left")
        ip("link set left up")
        changes = changes_until(monitor, LinkChange("left", up=True))
        assert changes.count(LinkChange("left", up=True)) == 1
        assert is_up("left")

    with_cable(check)


@pytest.mark.root
def test_a_cable_pulled_at_the_other_end_is_heard() -> None:
    """Losing the carrier counts as down, though sends go on succeeding."""

    def check(monitor: LinkMonitor) -> None:
        ip("link set right down")
        changes_until(monitor, LinkChange("left", up=False))
        assert not is_up("left")

    with_cable(check)


@pytest.mark.root
def test_an_interface_removed_is_heard() -> None:
    """An interface that is gone is down."""

    def check(monitor: LinkMonitor) -> None:
        ip("link delete left")
        changes_until(monitor, LinkChange("left", up=False))

    with_cable(check)


@pytest.mark.root
def test_an_address_taken_away_is_heard() -> None:
    """An address may go, and come back, while its interface stays up."""

    def check(monitor: LinkMonitor) -> None:
        assert interface_of("10.7.0.1") == "left"
        ip("address delete 10.7.0.1/24 dev left")
        changes = changes_until(monitor, LinkChange("left", up=False, address="10.7.0.1"))
        assert LinkChange("left", up=False) not in changes
        ip("address add 10.7.0.1/24 dev left")
        changes_until(monitor, LinkChange("left", up=True, address="10.7.0.1"))

    with_cable(check)


@pytest.mark.root
def test_more_changes_than_the_kernel_queues_are_found_by_asking(tmp_path: Path) -> None:
    """After an overrun the monitor compares: what lasts is said, once, and nothing stale."""

    def check(monitor: LinkMonitor) -> None:
        batch = tmp_path / "batch"
        batch.write_text("link set left down\nlink set left up\n" * 400 + "link set right down\n")
        ip(f"-batch {batch}")
        changes = monitor.read()
        assert changes.count(LinkChange("left", up=False)) == 1
        assert changes.count(LinkChange("left", up=True)) == 0
        assert not is_up("left")

    with_cable(check)


@pytest.mark.root
def test_a_link_without_a_wire_has_an_mtu_and_no_speed() -> None:
    """The speed that a virtual driver makes up is not passed on."""

    def check(monitor: LinkMonitor) -> None:
        ip("link set left mtu 4321")
        assert link_mtu_bytes("left") == 4321
        assert link_speed_bps("left") is None

    with_cable(check)


def test_messages_of_interfaces_are_read() -> None:
    """Up means switched on with a carrier; a removed interface is down whatever its flags."""
    up_and_running, up_only = 0x41, 0x01
    data = (
        link_message(16, 3, b"eth0", up_and_running)
        + link_message(16, 4, b"e1", up_only)
        + link_message(17, 5, b"gone", up_and_running)
    )
    assert list(parse_messages(data)) == [
        Link(3, "eth0", up=True),
        Link(4, "e1", up=False),
        Link(5, "gone", up=False),
    ]


def test_messages_of_bridges_about_their_ports_are_skipped() -> None:
    """A port that leaves a bridge is reported as removed, and is still there."""
    assert list(parse_messages(link_message(17, 3, b"eth0", 0x41, family=AF_BRIDGE))) == []


def test_an_address_still_being_checked_is_not_up() -> None:
    """An IPv6 address counts once no duplicate was found; over a tunnel the local end counts."""

    def message(flags: int) -> bytes:
        body = struct.pack("=BBBBI", 2, 24, flags, 0, 3)
        for kind, packed in ((1, b"\x0a\x00\x00\x02"), (2, b"\x0a\x00\x00\x01")):
            body += struct.pack("=HH", 8, kind) + packed
        return struct.pack("=IHHII", 16 + len(body), 20, 0, 0, 0) + body

    assert list(parse_messages(message(0))) == [Address(3, "10.0.0.1", 24, up=True)]
    assert list(parse_messages(message(0x40))) == [Address(3, "10.0.0.1", 24, up=False)]


def test_messages_cut_short_or_senseless_end_the_reading() -> None:
    """No length in a message makes the parser read on for ever or past the end."""
    whole = link_message(16, 3, b"eth0", 0x41)
    assert list(parse_messages(whole[:10])) == []
    assert list(parse_messages(struct.pack("=IHHII", 0, 16, 0, 0, 0) * 2)) == []
    assert list(parse_messages(b"")) == []
