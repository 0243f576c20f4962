"""The iCRC against two implementations that share nothing with ours."""

import zlib
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib import roce
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

from mrc.wire.fields import BTH, BadPacket
from mrc.wire.icrc import (
    ICRC_BYTES,
    PAYLOAD_BYTES_MAX,
    append_icrc,
    byte4_delta,
    check_icrc_untrusted,
    flow_seed,
    icrc,
    icrcs,
    packed_address,
)
from tests.wire.invariant import description_icrc
from tests.wire.packets import ANY_PACKET, Packet

Flow = tuple[tuple[str, int], tuple[str, int]]

FLOW_4: Flow = (("192.0.2.17", 49160), ("198.51.100.200", 4971))
FLOW_6: Flow = (("2001:db8::17", 65535), ("2001:db8:1:2:3:4:5:6", 4791))
FLOWS = pytest.mark.parametrize("flow", [FLOW_4, FLOW_6], ids=["ipv4", "ipv6"])

# Multiples of four as MRC has them, and others: the CRC must not depend on it.
SIZES = [12, 16, 17, 28, 47, 48, 60, 255, 1036, 1037, 4132, 8999]


@cache
def sample(size: int) -> bytes:
    """Bytes that look like a packet as far as the iCRC sees: byte 4 is zero."""
    data = bytearray(i * 73 + (i >> 8) & 0xFF for i in range(size))
    data[4] = 0
    return bytes(data)


def scapy_icrc(datagram: bytes, flow: Flow) -> int:
    """The iCRC of a UDP payload given without it, by scapy's RoCE layers."""
    (source, source_port), (destination, destination_port) = flow
    # Values that routers change, and that must not matter.
    ip: Any = (
        IPv6(src=source, dst=destination, tc=0x2E, fl=0x12345, hlim=3)
        if ":" in source
        else IP(src=source, dst=destination, id=0, flags="DF", tos=0x2E, ttl=3)
    )
    bth = roce.BTH(datagram[: BTH.size] + bytes(ICRC_BYTES))
    bth.icrc = None
    packet = ip / UDP(sport=source_port, dport=destination_port) / bth
    built = bytes(packet / Raw(datagram[BTH.size :]))
    return int.from_bytes(built[-ICRC_BYTES:], "little")


@FLOWS
@pytest.mark.parametrize("size", SIZES)
def test_the_icrc_is_the_one_scapy_computes(flow: Flow, size: int) -> None:
    """Over both IP versions and any length, scapy's RoCE layers give the same iCRC."""
    data = sample(size)
    assert icrc(data, flow_seed(*flow, size + ICRC_BYTES)) == scapy_icrc(data, flow)


@FLOWS
@given(packet=ANY_PACKET, payload=st.binary(max_size=70))
def test_the_icrc_is_the_one_of_the_description(flow: Flow, packet: Packet, payload: bytes) -> None:
    """Every packet ends with the iCRC that its description gives, least significant byte first."""
    data = packet.encode() + payload
    whole = append_icrc(data, *flow)
    assert whole == data + description_icrc(data, *flow).to_bytes(4, "little")
    check_icrc_untrusted(whole, *flow)


@FLOWS
def test_byte_4_of_the_bth_does_not_count(flow: Flow) -> None:
    """Switches may mark byte 4 of the BTH: the iCRC is the same for each of its values."""
    data = bytearray(sample(48))
    expected = description_icrc(bytes(data), *flow)
    for value in range(256):
        data[4] = value
        assert icrc(data, flow_seed(*flow, 52)) == expected


@pytest.mark.parametrize("size", [*range(12, 80), *SIZES])
def test_the_delta_stands_for_byte_4_set_to_ones(size: int) -> None:
    """A CRC over a packet as it is, changed by the delta of its length, is its iCRC."""
    data, seed = sample(size), flow_seed(*FLOW_6, size + ICRC_BYTES)
    assert zlib.crc32(data, seed) ^ byte4_delta(size) == icrc(data, seed)


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    """The CRCs of a run, each changed by the delta, are the iCRCs of its packets."""
    rows = [bytes((i,)) + sample(64)[1:] for i in range(5)]
    seed = flow_seed(*FLOW_4, 68)
    assert [value ^ byte4_delta(64) for value in icrcs(rows, seed)] == [
        icrc(row, seed) for row in rows
    ]


@FLOWS
def test_any_flipped_bit_is_found(flow: Flow) -> None:
    """One flipped bit anywhere, the iCRC included and byte 4 excepted, makes a bad packet."""
    whole = bytearray(append_icrc(sample(33), *flow))
    for bit in range(8 * len(whole)):
        whole[bit // 8] ^= 1 << bit % 8
        if bit // 8 == 4:
            check_icrc_untrusted(whole, *flow)
        else:
            with pytest.raises(BadPacket, match="iCRC does not match"):
                check_icrc_untrusted(whole, *flow)
        whole[bit // 8] ^= 1 << bit % 8


@FLOWS
def test_the_icrc_covers_the_addresses_and_ports(flow: Flow) -> None:
    """A packet that claims another sender, receiver or port has another iCRC."""
    (source, source_port), (destination, port) = flow
    whole = append_icrc(sample(48), *flow)
    for other in (
        ((destination, source_port), (destination, port)),
        ((source, source_port), (source, port)),
        ((source, source_port - 1), (destination, port)),
        ((source, source_port), (destination, port + 1)),
    ):
        with pytest.raises(BadPacket):
            check_icrc_untrusted(whole, *other)


def test_the_icrc_covers_the_length() -> None:
    """A packet that lost its last bytes does not pass, even where its iCRC would follow."""
    whole = append_icrc(sample(48), *FLOW_6)
    with pytest.raises(BadPacket):
        check_icrc_untrusted(whole[:-4], *FLOW_6)


@pytest.mark.parametrize("size", [0, 4, 15, PAYLOAD_BYTES_MAX + 1, 70_000])
@FLOWS
def test_what_is_no_datagram_has_no_icrc(flow: Flow, size: int) -> None:
    """Too short for a BTH and an iCRC, or longer than UDP carries: a bad packet."""
    with pytest.raises(BadPacket, match=f"^{size} bytes"):
        check_icrc_untrusted(bytes(size), *flow)


@FLOWS
def test_the_longest_datagram_has_an_icrc(flow: Flow) -> None:
    """The largest UDP payload is checked like any other."""
    check_icrc_untrusted(append_icrc(bytes(PAYLOAD_BYTES_MAX - 4), *flow), *flow)


def test_a_scope_does_not_travel() -> None:
    """The interface behind a link-local address is local, and not in the packet."""
    with_scope = (("fe80::1%eth0", 50000), ("fe80::2%3", 4971))
    without = (("fe80::1", 50000), ("fe80::2", 4971))
    assert flow_seed(*with_scope, 100) == flow_seed(*without, 100)


def test_a_mapped_address_is_an_ipv4_address() -> None:
    """What an IPv6 socket calls ::ffff:a.b.c.d is IPv4 on the wire."""
    assert packed_address("::ffff:192.0.2.1") == bytes((192, 0, 2, 1))
    assert packed_address("::1") == bytes(15) + b"\x01"


def test_a_name_is_no_address() -> None:
    """Only numeric addresses have bytes to cover."""
    with pytest.raises(ValueError, match="localhost"):
        packed_address("localhost")


@pytest.mark.parametrize("size", range(8))
def test_a_datagram_of_any_length_has_a_crc(size: int) -> None:
    """Also one that ends before the byte that is set to ones: its length is checked elsewhere."""
    ones = bytearray(size)
    ones[4:] = b"\xff" * len(ones[4:5]) + ones[5:]
    expected = zlib.crc32(bytes(ones) if size > 4 else bytes(size) + b"\xff", 7)
    assert icrc(bytes(size), 7) == expected
